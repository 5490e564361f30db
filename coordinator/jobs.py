"""Jobs: an outer state machine around the protocols' coordinator roles.

A job's messages are its history: the roles draw no randomness and read no clock, so driving a job again over
the stored mailbox after a crash brings it to where it was. What time decides (a deadline, a cancellation) is
written to the job's row before anyone acts on it.

Of several replicas, one drives a job; the others know it from the database, serve its messages, and take it over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.abc
import structlog
from exceptiongroup import BaseExceptionGroup

from commonscale import steps
from commonscale.channel import Channel, Event, Losses
from commonscale.concurrency import concurrently, first_error, offload
from commonscale.errors import (
    BadMessage,
    CommonscaleError,
    DeadlineMissed,
    Disagreement,
    NotAllowed,
    Refused,
    SiteFailed,
    TransientError,
    UnknownJob,
    Unreachable,
)
from commonscale.identity import Identity, Role
from commonscale.keyshelf import KeyShelf
from commonscale.metrics import JOB_SECONDS, JOBS, JOBS_OPEN, RoundMetrics
from commonscale.pipeline import Pipeline
from commonscale.protocols import admission
from commonscale.results import canonical_json, plain_text
from commonscale.slot import HUB, Slot
from commonscale.v1 import jobs_pb2, protocols_pb2
from coordinator import timeline
from coordinator.incidents import Incidents
from coordinator.jobstore import JobRecord, JobStore, now_ms
from coordinator.relay import Mailroom
from coordinator.replicas import Alone, Replicas

log = structlog.get_logger()

T = TypeVar("T")

STORE_RETRY_S = 1.0
REPLAY_S = 2.0
WATCH_INTERVAL_S = 0.05
# How often to look at what other replicas do, if no news of it comes; and how often to tell them of a job's progress.
LOOK_S = 1.0
SHARE_S = 0.5


@dataclass
class LiveJob:
    """A job that this process drives: its row, its progress, and how to stop it."""

    record: JobRecord
    metrics: RoundMetrics = field(default_factory=RoundMetrics)
    # Since when, in milliseconds.
    awaited: dict[Slot, int] = field(default_factory=dict)
    messages: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    changed: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)
    losses: Losses = field(default_factory=Losses)

    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        """Observer: count."""
        self.metrics.event(event, slot, size_bytes)
        self.messages += event == "received"

    @contextlib.contextmanager
    def waiting(self, slot: Slot) -> Iterator[None]:
        """Observer: who is awaited now. A wait that a deadline cuts off stays, to be named."""
        self.awaited[slot] = now_ms()
        self.notify()
        with self.metrics.waiting(slot):
            yield
        self.awaited.pop(slot, None)
        self.notify()

    def notify(self) -> None:
        """Wake the watchers."""
        self.changed.set()
        self.changed = anyio.Event()

    def progress(self) -> jobs_pb2.Progress:
        """Which message is awaited, and from whom; a site's last word only when nothing else is."""
        rounds = [slot for slot in self.awaited if slot.kind != "Outcome"] or list(self.awaited)
        kind = rounds[0].kind if rounds else ""
        awaited = [slot.sender for slot in rounds if slot.kind == kind]
        waits = [
            jobs_pb2.Wait(run=slot.run, kind=slot.kind, sender=slot.sender, since_ms=self.awaited[slot])
            for slot in rounds
        ]
        return jobs_pb2.Progress(round=kind, awaited=awaited, messages=self.messages, waits=waits)


class Jobs:
    """All jobs of the coordinator, as this replica sees them."""

    def __init__(
        self, store: JobStore, room: Mailroom, tasks: anyio.abc.TaskGroup, shelf: KeyShelf | None = None,
        replicas: Replicas | None = None, incidents: Incidents | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._room = room
        self._tasks = tasks
        self._shelf = shelf
        self._replicas = replicas or Alone()
        self._shares = replicas is not None
        self._incidents = incidents
        self._live: dict[str, LiveJob] = {}
        # Open jobs, whoever drives them.
        self._open: dict[str, JobRecord] = {}
        self._news = anyio.Event()
        self._look = anyio.Event()
        self._leaving = False

    async def resume(self) -> None:
        """Go on with what is open and nobody drives; learn what others drive."""
        await self._replicas.check()
        found = await offload(self._store.open_jobs)
        for record in found:
            if record.id not in self._live:
                self._open[record.id] = record
            if self._leaving:
                return
            if await self._replicas.claim(record.id):
                await self._take_over(record.id)
            elif record.id in self._live:
                self._stand_down(record.id)
        for job_id in set(self._open) - {record.id for record in found}:
            await self._learn_of_end(job_id)
        self._tell()

    async def attend(self) -> None:
        """Keep up with the other replicas; does not return."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._replicas.listen, self._hear)
            while True:
                with anyio.move_on_after(LOOK_S):
                    await self._look.wait()
                self._look = anyio.Event()
                if self._leaving:
                    return
                try:
                    await self.resume()
                except TransientError as error:
                    log.warning("other replicas are out of sight", why=str(error))

    async def leave(self) -> None:
        """Before this replica ends: hand its jobs over, and send the sites' sessions elsewhere."""
        self._leaving = True
        self._tell()
        if self._shares:
            for job_id in list(self._live):
                self._stand_down(job_id)
                await self._let_go(job_id)
                with contextlib.suppress(TransientError):
                    # Otherwise the others notice at their next look.
                    await offload(self._store.touch, job_id)

    def _hear(self, news: str) -> None:
        what, *words = news.split(" ")
        if what == "slot" and len(words) == 4:
            self._room.wake(Slot(*words))
        else:
            self._look.set()

    async def _take_over(self, job_id: str) -> None:
        """Drive a job that is ours now, unless it has ended before it was."""
        if job_id in self._live:
            return
        record = await offload(self._store.get, job_id)
        if record is not None and record.is_open:
            log.info("job taken over", job=job_id)
            self._start(record)
        else:
            await self._replicas.release(job_id)

    def _stand_down(self, job_id: str) -> None:
        """Another replica drives the job: we are leaving, or lost our session with the database and its locks."""
        live = self._live.pop(job_id, None)
        if live is None:
            return
        log.warning("job left to another replica", job=job_id)
        JOBS_OPEN.dec()
        live.scope.cancel()
        live.notify()

    async def _learn_of_end(self, job_id: str) -> None:
        """A job that was ended by another replica."""
        record = await offload(self._store.get, job_id)
        if record is None or not record.is_open:
            self._open.pop(job_id, None)
            self._room.close(job_id)
            if record is not None and job_id in self._live:
                live = self._live[job_id]
                await self._finish(record)
                live.scope.cancel()
                return
            await self._replicas.release(job_id)

    async def submit(self, job_id: str, spec: bytes, analyst: str) -> JobRecord:
        """Start a job, or find it started."""
        if self._leaving:
            raise Unreachable("This coordinator is being stopped.", "Repeat the call.")
        pipeline = Pipeline.from_bytes(spec)
        now = now_ms()
        fresh = JobRecord(job_id, spec, analyst, "inviting", now, now + 1000 * pipeline.deadline_s)
        # Claimed first, so that no other replica begins with the row.
        mine = await self._replicas.claim(job_id)
        try:
            record = await offload(self._store.create, fresh)
        except CommonscaleError:
            if job_id not in self._live:
                await self._let_go(job_id)
            raise
        if record is fresh:
            self._room.begin(job_id)
        if record.is_open and mine and job_id not in self._live:
            log.info("job submitted", job=job_id, analyst=analyst, sites=pipeline.sites)
            self._start(record)
        elif not record.is_open:
            await self._let_go(job_id)
        return record

    async def cancel(self, job_id: str, by: Identity) -> JobRecord:
        """End a job for everyone: by its analyst, or by the coordinator's operator."""
        record = await self.get(job_id)
        if by.role is Role.ANALYST and by.name != record.analyst:
            raise NotAllowed(f"Job {job_id} is of analyst {record.analyst}, not of {by.name}.")
        await self._end(record, "cancelled", error=f"Cancelled by {by}.")
        return await self.get(job_id)

    async def get(self, job_id: str) -> JobRecord:
        """One job."""
        if live := self._live.get(job_id):
            return live.record
        record = await offload(self._store.get, job_id)
        if record is None:
            raise UnknownJob(f"There is no job {job_id}.")
        return record

    async def lookup(self, job_id: str, party: str) -> JobRecord:
        """A job, for one of its sites only."""
        live = self._live.get(job_id)
        # What another replica drives is known here as well; that it has ended may be known a moment late.
        record = live.record if live else self._open.get(job_id) or await self.get(job_id)
        if record.is_open:
            self._open.setdefault(job_id, record)
        if party not in record.pipeline.sites:
            raise UnknownJob(f"There is no job {job_id} for {party}.")
        return record

    def drives(self, job_id: str) -> bool:
        """Whether the coordinator's role in a job runs in this process."""
        return job_id in self._live

    async def newest(self, limit: int) -> list[JobRecord]:
        """The newest jobs."""
        return await offload(self._store.newest, limit)

    def to_wire(self, record: JobRecord) -> jobs_pb2.Job:
        """A job as a message, with its progress if it is open."""
        live = self._live.get(record.id)
        return record.to_wire(live.progress() if live else None)

    async def watch(self, job_id: str) -> AsyncIterator[jobs_pb2.Job]:
        """The job now and after each change, until it has ended."""
        last = None
        while True:
            live = self._live.get(job_id)
            changed = live.changed if live else self._news
            job = self.to_wire(await self.get(job_id))
            if job != last:
                yield job
                last = job
            if job.ended_at_ms:
                return
            with anyio.move_on_after(LOOK_S):
                await changed.wait()
            if live is not None:
                # A fast round changes many times; a watcher sees the last of them, and the end at once.
                with anyio.move_on_after(WATCH_INTERVAL_S):
                    await live.ended.wait()

    async def invitations(self, site: str) -> AsyncIterator[JobRecord]:
        """Every open job of a site, then each new one."""
        told: set[str] = set()
        while True:
            news = self._news
            for job_id, record in list(self._open.items()):
                if job_id not in told and site in record.pipeline.sites:
                    told.add(job_id)
                    yield record
            told &= self._open.keys()
            if self._leaving:
                raise Unreachable("This coordinator is being stopped.", "Connect again.")
            await news.wait()

    async def forget_old(self, retention_s: int) -> None:
        """Remove the messages of jobs that ended long ago."""
        ended = await offload(self._store.ended_before, now_ms() - 1000 * retention_s)
        for job_id in sorted(await offload(self._room.store.job_ids) & set(ended)):
            await self._room.forget(job_id)

    def _start(self, record: JobRecord) -> None:
        if record.id in self._live:
            return
        live = self._live[record.id] = LiveJob(record)
        self._open[record.id] = record
        JOBS_OPEN.inc()
        self._tell()
        self._tasks.start_soon(self._drive, live)

    def _tell(self) -> None:
        """Wake those who wait for news of any job."""
        self._news.set()
        self._news = anyio.Event()

    async def _drive(self, live: LiveJob) -> None:
        """Run a job to its end, whatever that is."""
        with live.scope:
            try:
                async with anyio.create_task_group() as tasks:
                    if self._shares:
                        tasks.start_soon(self._share, live)
                    state, fields = await self._outcome(live)
                    tasks.cancel_scope.cancel()
                # Who was awaited to the last: for those who look for the reason.
                await self._end(live.record, state, progress=live.progress().SerializeToString(), **fields)
            except Exception as error:
                log.exception("job crashed", job=live.record.id, error=type(first_error(error)).__name__)
                await self._end(live.record, "failed", error="The coordinator failed; its log says more.")

    async def _share(self, live: LiveJob) -> None:
        """Let the other replicas' watchers know how far the job is."""
        while True:
            changed = live.changed
            try:
                await offload(self._store.note_progress, live.record.id, live.progress().SerializeToString())
            except TransientError as error:
                log.info("progress not shared", job=live.record.id, why=str(error))
            await anyio.sleep(SHARE_S)
            await changed.wait()

    async def _outcome(self, live: LiveJob) -> tuple[str, dict[str, str]]:
        """The state in which a job ends, and what is to be kept of it."""
        # After a restart, what is stored is read before the clock counts: nobody is blamed for our absence.
        left_s = max((live.record.deadline_at_ms - now_ms()) / 1000, REPLAY_S)
        try:
            with anyio.fail_after(left_s):
                results = await self._run_patiently(live)
        except TimeoutError:
            missed = self._missed(live)
            self._note(live, missed)
            return "failed", {"error": str(missed)}
        except Refused as error:
            self._note(live, error)
            return "refused", {"error": str(error)}
        except CommonscaleError as error:
            self._note(live, error)
            return "failed", {"error": str(error)}
        return "done", {"result_json": canonical_json(results)}

    def _note(self, live: LiveJob, error: CommonscaleError) -> None:
        if self._incidents is not None:
            self._incidents.note(f"job {live.record.id}", error)

    async def _run_patiently(self, live: LiveJob) -> list[dict[str, Any]]:
        """While the database or its disk is out, the job waits."""
        while True:
            try:
                return await self._run(live)
            except TransientError as error:
                log.warning("job waits for the store", job=live.record.id, why=str(error))
                await anyio.sleep(STORE_RETRY_S)

    async def _run(self, live: LiveJob) -> list[dict[str, Any]]:
        """The roles, and beside them the sites' last words: the first failure among them ends the job."""
        live.awaited.clear()
        results, digests = await concurrently([partial(self._roles, live), partial(self._outcomes, live)])
        expected = hashlib.sha256(canonical_json(results).encode()).digest()
        for site, digest in digests.items():
            if digest != expected:
                raise Disagreement(f"{site} ended with another result than the coordinator.")
        return results  # type: ignore[no-any-return]

    async def _roles(self, live: LiveJob) -> Any:
        pipeline = live.record.pipeline
        ch = await admission.coordinator(self._channel(live, live.record.id, pipeline))
        if live.record.state != "running":
            live.record = await offload(partial(self._store.update, live.record, state="running"))
            live.notify()
        return [
            (await steps.coordinator(ch.step(number), step)).parameters() for number, step in enumerate(pipeline.steps)
        ]

    async def _outcomes(self, live: LiveJob) -> Any:
        ch = self._channel(live, live.record.id, live.record.pipeline)

        async def outcome_of(site: str) -> bytes:
            outcome = await ch.recv(protocols_pb2.Outcome, site)
            if outcome.WhichOneof("verdict") is None:
                raise BadMessage(f"{site} sent an Outcome in {ch.run} that says neither success nor failure.")
            if outcome.WhichOneof("verdict") != "success":
                code, message = plain_text(outcome.failure.code), plain_text(outcome.failure.message)
                raise SiteFailed(f"{site} failed with {code}: {message}")
            return outcome.success.result_sha256

        async def unless_lost(site: str) -> bytes | None:
            """A site that was lost has no last word."""
            found: list[bytes] = []

            async def waits() -> None:
                found.append(await outcome_of(site))
                tasks.cancel_scope.cancel()

            async def lost() -> None:
                await live.losses.wait(site)
                tasks.cancel_scope.cancel()

            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(waits)
                    tasks.start_soon(lost)
            except BaseExceptionGroup as group:
                raise first_error(group) from None
            return found[0] if found else None

        digests = await concurrently([partial(unless_lost, site) for site in ch.parties])
        return {site: digest for site, digest in zip(ch.parties, digests, strict=True) if digest is not None}

    def _channel(self, live: LiveJob, run: str, pipeline: Pipeline) -> Channel:
        return Channel(
            run, HUB, tuple(pipeline.sites), self._room, observer=live, shelf=self._shelf, losses=live.losses
        )

    def _missed(self, live: LiveJob) -> DeadlineMissed:
        progress = live.progress()
        awaited = list(progress.awaited) or ["the coordinator"]
        return DeadlineMissed(
            f"The deadline passed while {', '.join(awaited)} {'was' if len(awaited) == 1 else 'were'} awaited "
            f"in round {progress.round or 'none'}.",
            "Check that daemon, then submit the job again.",
        )

    async def _end(self, record: JobRecord, state: str, **fields: str | bytes) -> None:
        fields |= await self._reports(record)
        await self._finish(await self._store_end(record, state, fields))

    async def _finish(self, final: JobRecord) -> None:
        """What an end means in this process."""
        self._open.pop(final.id, None)
        self._room.close(final.id)
        self._tell()
        # Whoever takes the job out of the list does the rest: it may end in two ways at once.
        live = self._live.pop(final.id, None)
        if live is None:
            return
        live.record = final
        live.ended.set()
        live.notify()
        JOBS_OPEN.dec()
        JOBS.labels(final.state).inc()
        JOB_SECONDS.labels(final.state).observe((final.ended_at_ms - final.submitted_at_ms) / 1000)
        log.info("job ended", job=final.id, state=final.state, error=final.error)
        with anyio.CancelScope(shield=True):
            await self._let_go(final.id)
        if final.state == "cancelled":
            live.scope.cancel()

    async def _let_go(self, job_id: str) -> None:
        try:
            await self._replicas.release(job_id)
        except TransientError as error:
            log.info("claim not given back", job=job_id, why=str(error))

    async def _reports(self, record: JobRecord) -> dict[str, str]:
        """What a job has revealed and what it took, however it ended."""
        arrivals = await self._patiently(partial(self._room.store.arrivals, record.id))
        revealed = timeline.revealed(record.id, record.pipeline, arrivals)
        return {
            "disclosure_json": json.dumps({"job": record.id, "revealed": revealed}),
            "rounds_json": json.dumps(timeline.rounds(arrivals)),
        }

    async def _store_end(self, record: JobRecord, state: str, fields: dict[str, str | bytes]) -> JobRecord:
        ended = partial(self._store.update, record, state=state, ended_at_ms=now_ms(), **fields)
        return await self._patiently(ended)

    async def _patiently(self, work: Callable[[], T]) -> T:
        """Ask the store until it answers; a shutdown may come in between, not in the middle."""
        while True:
            try:
                with anyio.CancelScope(shield=True):
                    return await offload(work)
            except TransientError as error:
                log.warning("the end of a job waits for the store", why=str(error))
                await anyio.sleep(STORE_RETRY_S)
