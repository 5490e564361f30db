"""The coordinator's role in one job, from the invitation to the result, a failure or the deadline."""

import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import anyio
import structlog

from commonscale.channel.channel import Channel, Event, Losses, Observer
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.concurrency import concurrently, first_error, first_of, offload, retry
from commonscale.database import now_ms
from commonscale.errors import (
    BadMessage,
    CommonscaleError,
    DeadlineMissed,
    Disagreement,
    Refused,
    SiteFailed,
    SiteLost,
    StateLost,
)
from commonscale.keyshelf import KeyShelf
from commonscale.metrics import RoundMetrics
from commonscale.pipeline import Pipeline
from commonscale.protocols import admission
from commonscale.results import canonical_json, plain_text
from commonscale.running import CoordinatorPool, run_step
from commonscale.statistics.training.evaluation import Metrics
from commonscale.statistics.training.standing import Standing
from commonscale.v1 import jobs_pb2
from commonscale.v1.protocols_pb2 import Outcome
from coordinator import timeline
from coordinator.incidents import Incidents
from coordinator.jobstore import JobRecord, JobStore
from coordinator.relay import Mailroom

log = structlog.get_logger()

REPLAY_S = 2.0


@dataclass
class LiveJob(Observer):
    """A job that this process drives: its row, its progress, and how to stop it."""

    record: JobRecord
    metrics: RoundMetrics = field(default_factory=RoundMetrics)
    # Since when, in milliseconds.
    awaited: dict[Slot, int] = field(default_factory=dict)
    messages: int = 0
    received_bytes: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    changed: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)
    losses: Losses = field(default_factory=Losses)
    # Of a step that trains, the newest; at first what another replica has noted.
    training: jobs_pb2.Training | None = None

    def __post_init__(self) -> None:
        self.training = training_of(self.record)

    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        """Observer: count."""
        self.metrics.event(event, slot, size_bytes)
        if event == "received":
            self.messages += 1
            self.received_bytes += size_bytes

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

    def trains(self, step: int, standing: Standing) -> None:
        """A round is done, or the session goes on after a restart."""
        now, before = now_ms(), self.training
        if before is None or before.step != step:
            before = jobs_pb2.Training()
        one_more = before.since_ms and before.done + 1 == standing.done
        round_s = (now - before.since_ms) / 1000 if one_more else before.round_s
        self.training = jobs_pb2.Training(
            step=step, done=standing.done, rounds=standing.rounds, since_ms=now, round_s=round_s,
            stopped_early=standing.stopped, lost=standing.lost, figures=[_figures(one) for one in standing.metrics],
        )  # fmt: skip
        self.notify()

    def progress(self) -> jobs_pb2.Progress:
        """Which message is awaited, and from whom; a site's last word only when nothing else is."""
        rounds = [slot for slot in self.awaited if slot.kind != "Outcome"] or list(self.awaited)
        kind = rounds[0].kind if rounds else ""
        awaited = [slot.sender for slot in rounds if slot.kind == kind]
        waits = [
            jobs_pb2.Wait(run=slot.run, kind=slot.kind, sender=slot.sender, since_ms=self.awaited[slot])
            for slot in rounds
        ]
        return jobs_pb2.Progress(
            round=kind, awaited=awaited, messages=self.messages, waits=waits, training=self.training,
            received_bytes=self.received_bytes,
        )  # fmt: skip


def training_of(record: JobRecord) -> jobs_pb2.Training | None:
    """How far the training of a job was, by what was noted of it last."""
    noted = jobs_pb2.Progress.FromString(record.progress or b"")
    return noted.training if noted.HasField("training") else None


def _figures(metrics: Metrics) -> jobs_pb2.Figures:
    return jobs_pb2.Figures(round=metrics.round, loss=metrics.loss, accuracy=metrics.accuracy, auc=metrics.auc)


class Driver:
    """Drives jobs to their ends, of which `finish` is told. `beside` runs as long as a job does."""

    def __init__(
        self, store: JobStore, room: Mailroom, finish: Callable[[JobRecord], Awaitable[None]], shelf: KeyShelf | None,
        incidents: Incidents | None, beside: Callable[[LiveJob], Awaitable[NoReturn]] | None,
    ) -> None:  # fmt: skip
        self._store = store
        self._room = room
        self._finish = finish
        self._shelf = shelf
        self._incidents = incidents
        self._beside = beside

    async def drive(self, live: LiveJob) -> None:
        """Run a job to its end, whatever that is."""
        with live.scope:
            try:
                beside = [partial(self._beside, live)] if self._beside is not None else []
                state, fields = await first_of(partial(self._outcome, live), *beside)
                # Who was awaited to the last: for those who look for the reason.
                await self.end(live.record, state, progress=live.progress().SerializeToString(), **fields)
            except Exception as error:
                log.exception("job crashed", job=live.record.id, error=type(first_error(error)).__name__)
                await self.end(live.record, "failed", error="The coordinator failed; its log says more.")

    async def end(self, record: JobRecord, state: str, **fields: str | bytes) -> None:
        """Write how a job ended, with what it revealed and took by the messages really sent, then act on it."""
        ask = partial(retry, waiting="the end of a job waits for the store", shielded=True)
        arrivals = await ask(partial(offload, self._room.store.arrivals, record.id))
        revealed = timeline.revealed(record, arrivals)
        fields["disclosure_json"] = json.dumps({"job": record.id, "revealed": revealed})
        fields["rounds_json"] = json.dumps(timeline.rounds(arrivals))
        ended = partial(self._store.update, record, state=state, ended_at_ms=now_ms(), **fields)
        await self._finish(await ask(partial(offload, ended)))

    async def _outcome(self, live: LiveJob) -> tuple[str, dict[str, str]]:
        """The state in which a job ends, and what is to be kept of it."""
        # After a restart, what is stored is read before the clock counts: nobody is blamed for our absence.
        left_s = max((live.record.deadline_at_ms - now_ms()) / 1000, REPLAY_S)
        try:
            with anyio.fail_after(left_s):
                # While the database or its disk is out, the job waits.
                results = await retry(partial(self._run, live), "job waits for the store", job=live.record.id)
            return "done", {"result_json": canonical_json(results)}
        except TimeoutError:
            error: CommonscaleError = _missed(live)
        except CommonscaleError as raised:
            error = raised
        if self._incidents is not None:
            self._incidents.note(f"job {live.record.id}", error)
        return "refused" if isinstance(error, Refused) else "failed", {"error": str(error)}

    async def _run(self, live: LiveJob) -> list[dict[str, Any]]:
        """The roles, and beside them the sites' last words: the first failure among them ends the job."""
        live.awaited.clear()
        pipeline = live.record.pipeline
        sites = tuple(pipeline.sites)
        ch = Channel(
            live.record.id, COORDINATOR, sites, self._room, observer=live, shelf=self._shelf, losses=live.losses,
            checkpoints=self._room,
        )  # fmt: skip
        may_lose = any(getattr(step, "patience_s", 0) for step in pipeline.steps)
        last_words = [partial(_last_word, ch, site, may_lose) for site in sites]
        results, *digests = await concurrently([partial(self._roles, live, ch), *last_words])
        expected = hashlib.sha256(canonical_json(results).encode()).digest()
        for site, digest in zip(sites, digests, strict=True):
            if digest not in (None, expected):
                raise Disagreement(f"{site} ended with another result than the coordinator.")
        return results  # type: ignore[no-any-return]

    async def _roles(self, live: LiveJob, ch: Channel) -> Any:
        admitted = await admission.coordinator(ch)
        if live.record.state != "running":
            live.record = await offload(partial(self._store.update, live.record, state="running"))
            live.notify()
        return await run_steps(admitted, live.record.pipeline, live.trains)


async def run_steps(ch: Channel, pipeline: Pipeline, trains: Callable[[int, Standing], None]) -> list[dict[str, Any]]:
    """The coordinator's role in all steps of a pipeline: the parameters of each that everyone may see."""
    parameters = []
    for number, step in enumerate(pipeline.steps):
        if ch.losses.stand_ins:
            lost = ", ".join(ch.losses.stand_ins)
            raise SiteLost(f"{lost} was lost, and the next step needs it.", "Submit the remaining steps without it.")
        parameters.append(
            step.parameters(await run_step(CoordinatorPool(ch.step(number), partial(trains, number)), step))
        )
    return parameters


# What a site says that comes back to a training which has gone on without it.
_LEFT_BEHIND = (SiteLost.__name__, StateLost.__name__)


async def _last_word(ch: Channel, site: str, may_lose: bool) -> bytes | None:
    """The hash of a site's result; none of a site that was lost."""
    outcome = await first_of(partial(ch.recv, Outcome, site), partial(ch.losses.wait, site))
    if outcome is None:
        return None
    if outcome.WhichOneof("verdict") is None:
        raise BadMessage(f"{site} sent an Outcome in {ch.run} that says neither success nor failure.")
    if outcome.WhichOneof("verdict") != "success":
        code, message = plain_text(outcome.failure.code), plain_text(outcome.failure.message)
        if may_lose and code in _LEFT_BEHIND:
            # Whether the others go on without it, the roles find out, also after a restart of this process.
            await ch.losses.wait(site)
            return None
        raise SiteFailed(f"{site} failed with {code}: {message}")
    return outcome.success.result_sha256


def _missed(live: LiveJob) -> DeadlineMissed:
    progress = live.progress()
    awaited = list(progress.awaited) or ["the coordinator"]
    return DeadlineMissed(
        f"The deadline passed while {', '.join(awaited)} {'was' if len(awaited) == 1 else 'were'} awaited "
        f"in round {progress.round or 'none'}.",
        "Check that daemon, then submit the job again.",
    )
