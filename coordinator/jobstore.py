"""Jobs and sites in the coordinator's database. Everything here blocks; callers use threads."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import sqlalchemy as sa
from cryptography import x509

from commonscale.database import Database, now_ms, row_of, table_of
from commonscale.errors import Equivocation
from commonscale.pipeline import Pipeline
from commonscale.v1 import jobs_pb2

OPEN_STATES = ("inviting", "running")
_AS_ON_THE_WIRE = (
    "id", "analyst", "submitted_at_ms", "deadline_at_ms", "ended_at_ms", "error", "result_json", "disclosure_json",
)  # fmt: skip
# A site says hello every 15 seconds.
ONLINE_MS = 40_000


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
        """The parsed spec; BadMessage where a newer release submitted what this one does not know."""
        return _parsed(self.spec)

    @cached_property
    def asked(self) -> jobs_pb2.JobSpec:
        """The spec as a message: who takes part is there, whatever the steps are."""
        return jobs_pb2.JobSpec.FromString(self.spec)

    def to_wire(self, progress: jobs_pb2.Progress | None = None) -> jobs_pb2.Job:
        """As a message."""
        if progress is None and self.is_open and self.progress:
            progress = jobs_pb2.Progress.FromString(self.progress)
        state = jobs_pb2.JobState.Value(f"JOB_STATE_{self.state.upper()}")
        alike = {name: getattr(self, name) for name in _AS_ON_THE_WIRE}
        return jobs_pb2.Job(state=state, spec=self.asked, progress=progress, **alike)


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


_JOBS, _SITES = table_of("jobs", JobRecord), table_of("sites", SiteRecord)
# Without what may be long.
_SUMMARY = [column for column in _JOBS.c if column.name not in ("result_json", "disclosure_json", "rounds_json")]


class JobStore:
    """The tables jobs and sites."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, record: JobRecord) -> JobRecord:
        """Add a job. The same id with the same spec gives the existing one; with another, Equivocation."""
        try:
            with self._database.writing() as connection:
                connection.execute(sa.insert(_JOBS).values(row_of(record)))
                self._database.tell(connection, f"job {record.id}")
        except sa.exc.IntegrityError:
            existing = self.get(record.id)
            if existing is None or (existing.spec, existing.analyst) != (record.spec, record.analyst):
                raise Equivocation(f"Another job has the id {record.id}.", "Choose another id.") from None
            return existing
        return record

    def get(self, job_id: str) -> JobRecord | None:
        """One job."""
        for row in self._database.rows(sa.select(_JOBS).where(_JOBS.c.id == job_id)):
            return JobRecord(**row._mapping)
        return None

    def newest(self, limit: int) -> list[JobRecord]:
        """The newest jobs, without their results."""
        query = sa.select(*_SUMMARY).order_by(_JOBS.c.submitted_at_ms.desc()).limit(limit)
        return [JobRecord(**row._mapping) for row in self._database.rows(query)]

    def open_jobs(self) -> list[JobRecord]:
        """What is under way, or has to go on after a restart."""
        query = sa.select(*_SUMMARY).where(_JOBS.c.state.in_(OPEN_STATES)).order_by(_JOBS.c.submitted_at_ms)
        return [JobRecord(**row._mapping) for row in self._database.rows(query)]

    def ended_before(self, limit_ms: int) -> list[str]:
        """Ids of jobs that ended before a time."""
        query = sa.select(_JOBS.c.id).where(_JOBS.c.state.not_in(OPEN_STATES), _JOBS.c.ended_at_ms < limit_ms)
        return [row.id for row in self._database.rows(query)]

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
        return {row[0]: row[1] for row in self._database.rows(query)}

    def note_progress(self, job_id: str, progress: bytes) -> None:
        """Let other replicas know how far an open job is."""
        condition = sa.and_(_JOBS.c.id == job_id, _JOBS.c.state.in_(OPEN_STATES))
        self._database.write(sa.update(_JOBS).where(condition).values(progress=progress))

    def seen(self, name: str, version: str, certificate: x509.Certificate) -> None:
        """Note that a site is there."""
        expires_ms = int(certificate.not_valid_after_utc.timestamp() * 1000)
        row = {"version": version, "last_seen_ms": now_ms(), "certificate_expires_ms": expires_ms}
        # Two daemons of one site, or its two first calls, may come at once.
        statement = self._database.insert(_SITES).values(name=name, left_at_ms=0, **row)
        self._database.write(statement.on_conflict_do_update(index_elements=["name"], set_=row))

    def left(self, name: str) -> None:
        """Note that a site's session ended."""
        self._database.write(sa.update(_SITES).where(_SITES.c.name == name).values(left_at_ms=now_ms()))

    def sites(self) -> list[SiteRecord]:
        """All sites that were ever seen."""
        return [SiteRecord(**row._mapping) for row in self._database.rows(sa.select(_SITES).order_by(_SITES.c.name))]
