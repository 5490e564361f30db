"""A site's memory: what it has made (once) and which jobs it is in. Blocking parts run in threads."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import sqlalchemy as sa

from commonscale.concurrency import offload
from commonscale.database import Database
from commonscale.errors import Disagreement, UnknownJob
from commonscale.slot import Slot

_JOURNAL = sa.table("journal", *map(sa.column, ("run", "kind", "sender", "receiver", "job_id", "payload")))
_JOB_COLUMNS = (
    "id", "spec", "analyst", "state", "approval", "reason", "deadline_at_ms", "received_at_ms", "error",
)  # fmt: skip
_JOBS = sa.table("jobs", *map(sa.column, _JOB_COLUMNS))


@dataclass(frozen=True)
class SiteJob:
    """A job as this site knows it. state: open, done, failed; approval: "", pending, approved, refused."""

    id: str
    spec: bytes
    analyst: str
    state: str
    approval: str
    reason: str
    deadline_at_ms: int
    received_at_ms: int
    error: str = ""


class Journal:
    """Made messages, stored before they are sent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def once(self, slot: Slot, make: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """The slot's bytes, made and stored durably at the first call only."""
        # A look-up by primary key in a local file is quicker than a hop to a thread; the durable write is not.
        if (kept := self._find(slot)) is not None:
            return kept, False
        payload = await make()
        await offload(self._insert, slot, payload)
        return payload, True

    def _find(self, slot: Slot) -> bytes | None:
        query = sa.select(_JOURNAL.c.payload).where(
            _JOURNAL.c.run == slot.run, _JOURNAL.c.kind == slot.kind,
            _JOURNAL.c.sender == slot.sender, _JOURNAL.c.receiver == slot.receiver,
        )  # fmt: skip
        with self._database.reading() as connection:
            return connection.execute(query).scalar_one_or_none()

    def _insert(self, slot: Slot, payload: bytes) -> None:
        row = {
            "run": slot.run, "kind": slot.kind, "sender": slot.sender, "receiver": slot.receiver,
            "job_id": slot.job_id, "payload": payload,
        }  # fmt: skip
        # A primary key: a second making of the same slot fails here, before anything is sent.
        with self._database.writing() as connection:
            connection.execute(sa.insert(_JOURNAL).values(row))


class SiteJobs:
    """The jobs of this site."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, job_id: str, spec: bytes, analyst: str, deadline_at_ms: int) -> SiteJob:
        """Note an invitation; the same again changes nothing, another spec under the same id is refused."""
        record = SiteJob(job_id, spec, analyst, "open", "", "", deadline_at_ms, time.time_ns() // 1_000_000)
        try:
            with self._database.writing() as connection:
                connection.execute(sa.insert(_JOBS).values({name: getattr(record, name) for name in _JOB_COLUMNS}))
        except sa.exc.IntegrityError:
            existing = self.get(job_id)
            if existing.spec != spec:
                raise Disagreement(
                    f"The coordinator shows another specification for job {job_id} than before."
                ) from None
            return existing
        return record

    def get(self, job_id: str) -> SiteJob:
        """One job."""
        with self._database.reading() as connection:
            row = connection.execute(sa.select(_JOBS).where(_JOBS.c.id == job_id)).one_or_none()
        if row is None:
            raise UnknownJob(f"This site knows no job {job_id}.")
        return SiteJob(**row._mapping)

    def all(self, state: str | None = None) -> list[SiteJob]:
        """All jobs, newest first, or those in a state."""
        query = sa.select(_JOBS).order_by(_JOBS.c.received_at_ms.desc())
        if state is not None:
            query = query.where(_JOBS.c.state == state)
        with self._database.reading() as connection:
            return [SiteJob(**row._mapping) for row in connection.execute(query)]

    def set_approval(self, job_id: str, approval: str, reason: str = "") -> None:
        """pending, approved or refused."""
        self._update(job_id, approval=approval, reason=reason)

    def end(self, job_id: str, state: str, error: str = "") -> None:
        """The job is over here: forget its secrets and messages, keep its row so that it is never run again."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(_JOURNAL).where(_JOURNAL.c.job_id == job_id))
            connection.execute(sa.update(_JOBS).where(_JOBS.c.id == job_id).values(state=state, error=error))

    def _update(self, job_id: str, **values: str) -> None:
        self.get(job_id)
        with self._database.writing() as connection:
            connection.execute(sa.update(_JOBS).where(_JOBS.c.id == job_id).values(values))
