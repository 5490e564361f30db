"""Jobs and sites in the coordinator's database. Everything here blocks; callers use threads."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import sqlalchemy as sa
from cryptography import x509

from commonscale.database import Database
from commonscale.errors import Equivocation
from commonscale.pipeline import Pipeline
from commonscale.v1 import jobs_pb2

_JOB_COLUMNS = (
    "id", "spec", "analyst", "state", "submitted_at_ms", "deadline_at_ms", "ended_at_ms", "error", "result_json",
    "disclosure_json", "progress", "rounds_json",
)  # fmt: skip
_JOBS = sa.table("jobs", *map(sa.column, _JOB_COLUMNS))
# Without what may be long.
_SUMMARY = [_JOBS.c[name] for name in _JOB_COLUMNS if name not in ("result_json", "disclosure_json", "rounds_json")]
_SITES = sa.table("sites", *map(sa.column, ("name", "version", "last_seen_ms", "certificate_expires_ms", "left_at_ms")))

OPEN_STATES = ("inviting", "running")
# A site says hello every 15 seconds.
ONLINE_MS = 40_000


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@lru_cache(maxsize=256)
def _parsed(spec: bytes) -> Pipeline:
    return Pipeline.from_bytes(spec)


@dataclass(frozen=True)
class JobRecord:
    """A row of jobs."""

    id: str
    spec: bytes
    analyst: str
    state: str
    submitted_at_ms: int
    deadline_at_ms: int
    ended_at_ms: int = 0
    error: str = ""
    result_json: str = ""
    disclosure_json: str = ""
    # A serialized Progress, by the replica that drives the job; not always the newest.
    progress: bytes | None = None
    rounds_json: str = ""

    @property
    def is_open(self) -> bool:
        """Still under way."""
        return self.state in OPEN_STATES

    @cached_property
    def pipeline(self) -> Pipeline:
        """The parsed spec."""
        return _parsed(self.spec)

    def to_wire(self, progress: jobs_pb2.Progress | None = None) -> jobs_pb2.Job:
        """As a message."""
        if progress is None and self.is_open and self.progress:
            progress = jobs_pb2.Progress.FromString(self.progress)
        return jobs_pb2.Job(
            id=self.id,
            state=jobs_pb2.JobState.Value(f"JOB_STATE_{self.state.upper()}"),
            analyst=self.analyst,
            spec=jobs_pb2.JobSpec.FromString(self.spec),
            submitted_at_ms=self.submitted_at_ms,
            deadline_at_ms=self.deadline_at_ms,
            ended_at_ms=self.ended_at_ms,
            error=self.error,
            progress=progress,
            result_json=self.result_json,
            disclosure_json=self.disclosure_json,
        )


@dataclass(frozen=True)
class SiteRecord:
    """A row of sites."""

    name: str
    version: str
    last_seen_ms: int
    certificate_expires_ms: int
    left_at_ms: int = 0

    def is_online(self, at_ms: int) -> bool:
        """Seen lately, and has not left since."""
        return self.last_seen_ms > max(self.left_at_ms, at_ms - ONLINE_MS)


class JobStore:
    """The tables jobs and sites."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, record: JobRecord) -> JobRecord:
        """Add a job. The same id with the same spec gives the existing one; with another, Equivocation."""
        values = {name: getattr(record, name) for name in _JOB_COLUMNS}
        try:
            with self._database.writing() as connection:
                connection.execute(sa.insert(_JOBS).values(values))
                self._database.tell(connection, f"job {record.id}")
        except sa.exc.IntegrityError:
            existing = self.get(record.id)
            if existing is None or (existing.spec, existing.analyst) != (record.spec, record.analyst):
                raise Equivocation(f"Another job has the id {record.id}.", "Choose another id.") from None
            return existing
        return record

    def get(self, job_id: str) -> JobRecord | None:
        """One job."""
        with self._database.reading() as connection:
            row = connection.execute(sa.select(_JOBS).where(_JOBS.c.id == job_id)).one_or_none()
        return JobRecord(**row._mapping) if row else None

    def newest(self, limit: int) -> list[JobRecord]:
        """The newest jobs, without their results."""
        query = sa.select(*_SUMMARY).order_by(_JOBS.c.submitted_at_ms.desc()).limit(limit)
        with self._database.reading() as connection:
            return [JobRecord(**row._mapping) for row in connection.execute(query)]

    def open_jobs(self) -> list[JobRecord]:
        """What is under way, or has to go on after a restart."""
        query = sa.select(*_SUMMARY).where(_JOBS.c.state.in_(OPEN_STATES)).order_by(_JOBS.c.submitted_at_ms)
        with self._database.reading() as connection:
            return [JobRecord(**row._mapping) for row in connection.execute(query)]

    def ended_before(self, limit_ms: int) -> list[str]:
        """Ids of jobs that ended before a time."""
        query = sa.select(_JOBS.c.id).where(_JOBS.c.state.not_in(OPEN_STATES), _JOBS.c.ended_at_ms < limit_ms)
        with self._database.reading() as connection:
            return list(connection.scalars(query))

    def update(self, record: JobRecord, **changes: str | int | bytes) -> JobRecord:
        """Change an open job; an ended one stays as it ended. Returns the job as it is now."""
        condition = sa.and_(_JOBS.c.id == record.id, _JOBS.c.state.in_(OPEN_STATES))
        with self._database.writing() as connection:
            changed = connection.execute(sa.update(_JOBS).where(condition).values(changes)).rowcount
            self._database.tell(connection, f"job {record.id}")
        if changed:
            return replace(record, **changes)  # type: ignore[arg-type]
        return self.get(record.id) or record

    def touch(self, job_id: str) -> None:
        """Draw the replicas' attention to a job."""
        with self._database.writing() as connection:
            self._database.tell(connection, f"job {job_id}")

    def totals(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        query = sa.select(_JOBS.c.state, sa.func.count()).group_by(_JOBS.c.state)
        with self._database.reading() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def note_progress(self, job_id: str, progress: bytes) -> None:
        """Let other replicas know how far an open job is."""
        condition = sa.and_(_JOBS.c.id == job_id, _JOBS.c.state.in_(OPEN_STATES))
        with self._database.writing() as connection:
            connection.execute(sa.update(_JOBS).where(condition).values(progress=progress))

    def seen(self, name: str, version: str, certificate: x509.Certificate) -> None:
        """Note that a site is there."""
        row = {
            "version": version,
            "last_seen_ms": now_ms(),
            "certificate_expires_ms": int(certificate.not_valid_after_utc.timestamp() * 1000),
        }
        with self._database.writing() as connection:
            if not connection.execute(sa.update(_SITES).where(_SITES.c.name == name).values(row)).rowcount:
                connection.execute(sa.insert(_SITES).values({"name": name, **row}))

    def left(self, name: str) -> None:
        """Note that a site's session ended."""
        with self._database.writing() as connection:
            connection.execute(sa.update(_SITES).where(_SITES.c.name == name).values(left_at_ms=now_ms()))

    def sites(self) -> list[SiteRecord]:
        """All sites that were ever seen."""
        with self._database.reading() as connection:
            return [SiteRecord(**row._mapping) for row in connection.execute(sa.select(_SITES).order_by(_SITES.c.name))]
