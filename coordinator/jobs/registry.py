"""All jobs of the coordinator: what analysts, sites and the dashboard ask of them."""

from collections.abc import AsyncIterator

import anyio
import structlog

from commonscale.concurrency import offload
from commonscale.database import now_ms
from commonscale.errors import CommonscaleError, NotAllowed, UnknownJob, Unreachable
from commonscale.identity import Identity, Role
from commonscale.pipeline import Pipeline
from commonscale.v1 import jobs_pb2
from coordinator.jobs.board import LOOK_S, Board
from coordinator.jobstore import JobRecord

log = structlog.get_logger()

WATCH_INTERVAL_S = 0.05


class Jobs(Board):
    """All jobs of the coordinator, as this replica sees them."""

    async def submit(self, job_id: str, spec: bytes, analyst: str) -> JobRecord:
        """Start a job, or find it started."""
        if self._leaving:
            raise Unreachable("This coordinator is being stopped.", "Repeat the call.")
        pipeline = Pipeline.from_bytes(spec)
        now = now_ms()
        fresh = JobRecord(job_id, spec, analyst, "inviting", now, now + 1000 * pipeline.deadline_s)
        # Claimed first, so that no other replica begins with the row.
        mine = await self._claim(job_id)
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
        live = self._live.get(job_id)
        so_far = {"progress": live.progress().SerializeToString()} if live else {}
        await self._driver.end(record, "cancelled", error=f"Cancelled by {by}.", **so_far)
        return await self.get(job_id)

    async def get(self, job_id: str) -> JobRecord:
        """One job."""
        if live := self._live.get(job_id):
            return live.record
        record = await offload(self._store.get, job_id)
        if record is None:
            raise UnknownJob(f"There is no job {job_id}.")
        return record

    async def lookup(self, job_id: str, site: str) -> JobRecord:
        """A job, for one of its sites only."""
        live = self._live.get(job_id)
        # What another replica drives is known here as well; that it has ended may be known a moment late.
        record = live.record if live else self._open.get(job_id) or await self.get(job_id)
        if record.is_open:
            self._open.setdefault(job_id, record)
        if site not in record.asked.sites:
            raise UnknownJob(f"There is no job {job_id} for {site}.")
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
        invited: set[str] = set()
        while True:
            news = self._news
            for job_id, record in list(self._open.items()):
                if job_id not in invited and site in record.asked.sites:
                    invited.add(job_id)
                    yield record
            invited &= self._open.keys()
            if self._leaving:
                raise Unreachable("This coordinator is being stopped.", "Connect again.")
            await news.wait()

    async def forget_old(self, retention_s: int) -> None:
        """Remove the messages of jobs that ended long ago."""
        ended = await offload(self._store.ended_before, now_ms() - 1000 * retention_s)
        for job_id in sorted(await offload(self._room.store.job_ids) & set(ended)):
            await self._room.forget(job_id)
