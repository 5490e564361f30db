"""A site's memory: what it has made (once) and which jobs it is in. Blocking parts run in threads."""

import contextlib
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from commonscale.channel.slot import Slot
from commonscale.concurrency import offload
from commonscale.config import ParticipantConfig
from commonscale.database import Database, now_ms, row_of, table_of
from commonscale.errors import Disagreement, StateLost, StoreUnavailable, UnknownJob
from commonscale.files import private_directory, sync_file
from commonscale.v1.protocols_pb2 import Checkpoint
from participant.vault import Vault

_JOURNAL = sa.table(
    "journal", *map(sa.column, ("run", "kind", "sender", "receiver", "job_id", "payload", "blob", "sha256"))
)
# Made once: putting a statement together takes longer than running it.
_FIND = sa.select(_JOURNAL.c.payload, _JOURNAL.c.blob, _JOURNAL.c.sha256).where(
    *(_JOURNAL.c[name] == sa.bindparam(name) for name in ("run", "kind", "sender", "receiver"))
)
_INSERT = sa.insert(_JOURNAL)
INLINE_BYTES = 64 << 10
_CHECKPOINT = Checkpoint.DESCRIPTOR.name
MIGRATIONS = Path(__file__).parent / "migrations"


def open_database(config: ParticipantConfig) -> Database:
    """The site's journal; only its owner may read it."""
    private_directory(config.state)
    database = Database(f"sqlite:///{config.state / 'participant.db'}", MIGRATIONS)
    (config.state / "participant.db").chmod(0o600)
    return database


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
    # Who approved or refused: "page" or "command".
    decided_by: str = ""
    decided_at_ms: int = 0
    # Whether the audit log has the decision.
    noted: bool = False

    @property
    def waiting(self) -> bool:
        """Whether a person must decide."""
        return self.approval == "pending" and self.state == "open"


_JOBS = table_of("jobs", SiteJob)


class Journal:
    """Made messages, stored before they are sent; secrets are locked in the vault.

    A row is durable before its message is sent. A large payload stands in a file that the system writes when it likes:
    after a crash of this process it is there; after a power cut it may not be, and the row, which says what it was,
    ends the run with StateLost. A message is never made a second time.
    """

    def __init__(self, database: Database, directory: Path, vault: Vault) -> None:
        self._database = database
        self._directory = directory
        self._vault = vault
        private_directory(directory)

    async def once(self, slot: Slot, make: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """The slot's bytes, made and stored durably at the first call only."""
        # A look-up by primary key in a local file is quicker than a hop to a thread; the durable write is not.
        if (kept := self._find(slot)) is not None:
            return kept, False
        payload = await make()
        await offload(self._insert, slot, payload)
        return payload, True

    def sweep(self) -> None:
        """Remove files that no row names: a crash came between the two."""
        rows = self._database.rows(sa.select(_JOURNAL.c.blob).where(_JOURNAL.c.blob.is_not(None)))
        named = {row.blob for row in rows}
        for path in self._directory.iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)

    def _find(self, slot: Slot) -> bytes | None:
        for row in self._database.rows(_FIND, vars(slot)):
            stored = row.payload if row.blob is None else self._read(slot, row.blob, row.sha256)
            return self._vault.unlock(stored, slot.context()) if _is_secret(slot) else stored
        return None

    def _read(self, slot: Slot, blob: str, sha256: bytes) -> bytes:
        try:
            found = (self._directory / blob).read_bytes()
        except OSError:
            found = b""
        if hashlib.sha256(found).digest() != sha256:
            raise StateLost(
                f"{slot.sender} no longer has its {slot.kind} of {slot.run}.",
                "Submit the job again; what was made once is not made a second time.",
            )
        return found

    def _insert(self, slot: Slot, payload: bytes) -> None:
        # A primary key: a second making of the same slot fails here, before anything is sent.
        row = self._row(slot, payload)
        with self._without_leftovers(row):
            self._database.write(_INSERT, row)

    def _row(self, slot: Slot, payload: bytes, *, synced: bool = False) -> dict[str, Any]:
        """What is to stand in the database; a large payload is in its file by then, if wanted safe from power cuts."""
        stored = self._vault.lock(payload, slot.context()) if _is_secret(slot) else payload
        row: dict[str, Any] = {**vars(slot), "job_id": slot.job_id, "payload": stored, "blob": None, "sha256": None}
        if len(stored) > INLINE_BYTES:
            row |= {"payload": None, "blob": secrets.token_hex(16), "sha256": hashlib.sha256(stored).digest()}
            path = self._directory / row["blob"]
            try:
                path.write_bytes(stored)
                if synced:
                    sync_file(path)
            except OSError as error:
                path.unlink(missing_ok=True)
                raise StoreUnavailable(f"The journal takes no more: {error.strerror}.") from None
        return row

    async def last(self, run: str, me: str) -> bytes | None:
        """The newest checkpoint of a step's session."""
        slots = [Slot(row.run, _CHECKPOINT, me, me) for row in await offload(self._checkpoints, run, me)]
        return self._find(max(slots, key=_round)) if slots else None

    def _checkpoints(self, run: str, me: str) -> Sequence[sa.Row[Any]]:
        mine = sa.and_(_JOURNAL.c.kind == _CHECKPOINT, _JOURNAL.c.sender == me, _JOURNAL.c.receiver == me)
        return self._database.rows(
            sa.select(_JOURNAL.c.run).where(_JOURNAL.c.run.startswith(f"{run}/", autoescape=True), mine)
        )

    async def keep(self, slot: Slot, payload: bytes, behind: Sequence[str]) -> None:
        """Store a checkpoint and forget the runs behind it, in one transaction."""
        await offload(self._keep, slot, payload, behind)

    def _keep(self, slot: Slot, payload: bytes, behind: Sequence[str]) -> None:
        # Synced: what it stands for is forgotten, so unlike a message it must outlive a power cut.
        row = self._row(slot, payload, synced=True)
        gone = _JOURNAL.c.run.in_(behind)
        with self._without_leftovers(row), self._database.writing() as connection:
            blobs = connection.scalars(sa.select(_JOURNAL.c.blob).where(gone, _JOURNAL.c.blob.is_not(None))).all()
            connection.execute(sa.delete(_JOURNAL).where(gone))
            connection.execute(_INSERT, row)
        for blob in blobs:
            # A file that stays is removed at the next start.
            with contextlib.suppress(OSError):
                (self._directory / blob).unlink()

    @contextlib.contextmanager
    def _without_leftovers(self, row: dict[str, Any]) -> Iterator[None]:
        """A row that the database does not take leaves no file."""
        try:
            yield
        except BaseException:
            if row["blob"] is not None:
                (self._directory / row["blob"]).unlink(missing_ok=True)
            raise


def _round(slot: Slot) -> int:
    return int(slot.run.rpartition("/")[2])


def _is_secret(slot: Slot) -> bool:
    """What a site keeps for itself, and never sends."""
    return slot.sender == slot.receiver


class SiteJobs:
    """The jobs of this site."""

    def __init__(self, database: Database, journal_files: Path | None = None) -> None:
        self._database = database
        self._files = journal_files

    def open(self, job_id: str, spec: bytes, analyst: str, deadline_at_ms: int) -> SiteJob:
        """Note an invitation; the same again changes nothing, another spec under the same id is refused."""
        record = SiteJob(job_id, spec, analyst, "open", "", "", deadline_at_ms, now_ms())
        try:
            self._database.write(sa.insert(_JOBS).values(row_of(record)))
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
        for row in self._database.rows(sa.select(_JOBS).where(_JOBS.c.id == job_id)):
            return SiteJob(**row._mapping)
        raise UnknownJob(f"This site knows no job {job_id}.")

    def all(
        self, state: str | None = None, *, before: SiteJob | None = None, limit: int | None = None
    ) -> list[SiteJob]:
        """All jobs, newest first; or those in a state, those that follow one of them, so many."""
        query = sa.select(_JOBS).order_by(_JOBS.c.received_at_ms.desc(), _JOBS.c.id).limit(limit)
        if state is not None:
            query = query.where(_JOBS.c.state == state)
        if before is not None:
            at, same = _JOBS.c.received_at_ms, _JOBS.c.received_at_ms == before.received_at_ms
            query = query.where(sa.or_(at < before.received_at_ms, sa.and_(same, _JOBS.c.id > before.id)))
        return [SiteJob(**row._mapping) for row in self._database.rows(query)]

    def ask(self, job_id: str) -> bool:
        """Put a job before a person, once; says whether this was the time."""
        return self._change(job_id, _JOBS.c.approval == "", approval="pending")

    def decide(self, job_id: str, approval: str, reason: str, by: str) -> bool:
        """Approve or refuse, if the job waits for that: of several people one decides; says whether this one did."""
        waits = sa.and_(_JOBS.c.approval == "pending", _JOBS.c.state == "open")
        return self._change(
            job_id, waits, approval=approval, reason=reason, decided_by=by, decided_at_ms=now_ms(), noted=False
        )

    def ended_unnoted(self) -> list[str]:
        """Ended jobs with a decision that the audit log may not have."""
        unnoted = sa.and_(_JOBS.c.decided_by != "", _JOBS.c.noted == sa.false(), _JOBS.c.state != "open")
        return [row.id for row in self._database.rows(sa.select(_JOBS.c.id).where(unnoted))]

    def set_noted(self, job_id: str) -> None:
        """The audit log has the decision."""
        self._change(job_id, sa.true(), noted=True)

    def end(self, job_id: str, state: str, error: str = "") -> None:
        """The job is over here: forget its secrets and messages, keep its row so that it is never run again."""
        of_job = _JOURNAL.c.job_id == job_id
        with self._database.writing() as connection:
            blobs = connection.scalars(sa.select(_JOURNAL.c.blob).where(of_job, _JOURNAL.c.blob.is_not(None))).all()
            connection.execute(sa.delete(_JOURNAL).where(of_job))
            connection.execute(sa.update(_JOBS).where(_JOBS.c.id == job_id).values(state=state, error=error))
        for blob in blobs if self._files else ():
            (self._files / blob).unlink(missing_ok=True)

    def _change(self, job_id: str, condition: sa.ColumnElement[bool], **values: Any) -> bool:
        return self._database.write(sa.update(_JOBS).where(_JOBS.c.id == job_id, condition).values(values)) == 1
