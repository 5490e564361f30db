"""Open jobs as this process knows them: those that it drives, those of other replicas, and how they change hands."""

import contextlib
from typing import NoReturn

import anyio
import anyio.abc
import structlog

from commonscale.channel.slot import Slot
from commonscale.concurrency import offload
from commonscale.errors import TransientError
from commonscale.keyshelf import KeyShelf
from commonscale.metrics import JOB_SECONDS, JOBS, JOBS_OPEN
from coordinator.incidents import Incidents
from coordinator.jobs.driver import Driver, LiveJob
from coordinator.jobstore import JobRecord, JobStore
from coordinator.relay import Mailroom
from coordinator.replicas import Replicas

log = structlog.get_logger()

# How often to look at what other replicas do, if no news of it comes; and how often to tell them of a job's progress.
LOOK_S = 1.0
SHARE_S = 0.5


class Board:
    """Which jobs are open, which of them are driven here, and what ending one means in this process."""

    def __init__(
        self, store: JobStore, room: Mailroom, tasks: anyio.abc.TaskGroup, shelf: KeyShelf | None = None,
        replicas: Replicas | None = None, incidents: Incidents | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._room = room
        self._tasks = tasks
        # None: this process has the database for itself.
        self._replicas = replicas
        self._driver = Driver(store, room, self._finish, shelf, incidents, self._share if replicas else None)
        self._live: dict[str, LiveJob] = {}
        # Open jobs, whoever drives them.
        self._open: dict[str, JobRecord] = {}
        self._news = anyio.Event()
        self._look = anyio.Event()
        # This replica is being stopped.
        self._leaving = False

    async def resume(self) -> None:
        """Go on with what is open and nobody drives; learn what others drive."""
        if self._replicas is not None:
            await self._replicas.check()
        found = await offload(self._store.open_jobs)
        for record in found:
            if record.id not in self._live:
                self._open[record.id] = record
            if self._leaving:
                return
            if await self._claim(record.id):
                await self._take_over(record.id)
            elif record.id in self._live:
                self._stand_down(record.id)
        for job_id in set(self._open) - {record.id for record in found}:
            await self._learn_of_end(job_id)
        self._tell()

    async def attend(self) -> None:
        """Keep up with the other replicas; does not return."""
        assert self._replicas is not None
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
        for job_id in list(self._live) if self._replicas is not None else ():
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

    def _tell(self) -> None:
        """Wake those who wait for news of any job."""
        self._news.set()
        self._news = anyio.Event()

    def _start(self, record: JobRecord) -> None:
        """From now on the job is driven here."""
        if record.id not in self._live:
            self._live[record.id] = live = LiveJob(record)
            self._open[record.id] = record
            JOBS_OPEN.inc()
            self._tell()
            self._tasks.start_soon(self._driver.drive, live)

    async def _take_over(self, job_id: str) -> None:
        """Drive a job that is ours now, unless it has ended before it was."""
        if job_id in self._live:
            return
        record = await offload(self._store.get, job_id)
        if record is not None and record.is_open:
            log.info("job taken over", job=job_id)
            self._start(record)
        else:
            await self._let_go(job_id)

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
        if record is not None and not record.is_open:
            live = self._live.get(job_id)
            await self._finish(record)
            if live is not None:
                live.scope.cancel()
            await self._let_go(job_id)

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

    async def _claim(self, job_id: str) -> bool:
        return self._replicas is None or await self._replicas.claim(job_id)

    async def _let_go(self, job_id: str) -> None:
        """Give a claim back; one that cannot be given back now ends with our session."""
        if self._replicas is not None:
            try:
                await self._replicas.release(job_id)
            except TransientError as error:
                log.info("claim not given back", job=job_id, why=str(error))

    async def _share(self, live: LiveJob) -> NoReturn:
        """Let the other replicas' watchers know how far a job is; does not return."""
        while True:
            changed = live.changed
            try:
                await offload(self._store.note_progress, live.record.id, live.progress().SerializeToString())
            except TransientError as error:
                log.info("progress not shared", job=live.record.id, why=str(error))
            await anyio.sleep(SHARE_S)
            await changed.wait()
