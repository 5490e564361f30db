"""The relay's slots: written once, durable before they are acknowledged, never held in memory whole.

Small payloads stand in their rows, large ones where `coordinator.blobs` puts them. Everything here blocks; callers use
threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from commonscale.channel.slot import COORDINATOR, Slot, step_run
from commonscale.database import Database, now_ms
from commonscale.errors import BadMessage, Equivocation, StateLost, StoreUnavailable
from coordinator.blobs import Blobs, Writer, new_name

INLINE_BYTES = 64 << 10
_RUNS_AT_ONCE = 500

_KEY = ("run", "kind", "sender", "receiver")
_TABLE = sa.table(
    "slots", *map(sa.column, (*_KEY, "job_id", "size_bytes", "sha256", "payload", "blob", "stored_at_ms"))
)


@dataclass(frozen=True)
class Stored:
    """A filled slot. Its payload is in `payload`, or among the blobs under the name `blob`; trimmed, it is gone."""

    size_bytes: int
    sha256: bytes
    payload: bytes | None = None
    blob: str | None = None
    blobs: Blobs | None = None

    @property
    def is_trimmed(self) -> bool:
        """Whether its payload was dropped behind a checkpoint."""
        return self.payload is None and self.blob is None

    def chunks(self, chunk_bytes: int) -> Iterator[bytes]:
        """The payload in pieces; whoever puts them together checks the hash."""
        if self.payload is not None:
            yield self.payload
        elif self.blob is None or self.blobs is None:
            # Of a site that goes on from its checkpoint nobody hears this.
            raise StateLost(
                "A message from behind the last checkpoint was asked for.",
                "Submit the job again; a site's state must not be restored from a backup in mid-job.",
            )
        else:
            yield from self.blobs.chunks(self.blob, chunk_bytes)

    def read(self) -> bytes:
        """The payload whole; damage raises instead of giving other bytes than were stored."""
        payload = b"".join(self.chunks(1 << 20))
        if hashlib.sha256(payload).digest() != self.sha256:
            raise StoreUnavailable("A stored payload is damaged.", "Restore the blobs.")
        return payload


@dataclass(frozen=True)
class Arrival:
    """That a message came, or several of one kind in a session; when, and how long it is, not what it says."""

    slot: Slot
    size_bytes: int
    stored_at_ms: int
    # Of several: how many, and when the first came.
    messages: int = 1
    first_at_ms: int = 0

    @property
    def began_ms(self) -> int:
        """When it, or the first of several, came."""
        return self.first_at_ms or self.stored_at_ms


class SlotStore:
    """Slots in a database, and large payloads among blobs."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self.blobs = blobs
        self._inserts = _GroupCommit(database)

    def put(self, slot: Slot, payload: bytes, announced_sha256: bytes | None = None) -> Stored:
        """Fill a slot; nothing changes where it holds these bytes already, Equivocation where it holds others."""
        with self.upload(slot, len(payload)) as upload:
            upload.write(payload)
            return upload.commit(upload.sha256() if announced_sha256 is None else announced_sha256)

    def upload(self, slot: Slot, size_bytes: int) -> Upload:
        """Begin to fill a slot piece by piece."""
        return Upload(self, slot, size_bytes)

    def find(self, slot: Slot) -> Stored | None:
        """The slot's contents, if it is filled."""
        query = sa.select(_TABLE.c.size_bytes, _TABLE.c.sha256, _TABLE.c.payload, _TABLE.c.blob).where(_is(slot))
        for row in self._database.rows(query):
            return Stored(row.size_bytes, row.sha256, row.payload, row.blob, self.blobs)
        return None

    def job_ids(self) -> set[str]:
        """Every job that has messages here."""
        return {row.job_id for row in self._database.rows(sa.select(_TABLE.c.job_id).distinct())}

    def arrivals(self, job_id: str) -> list[Arrival]:
        """Every message of a job that has come, in order of time."""
        columns = [_TABLE.c[name] for name in (*_KEY, "size_bytes", "stored_at_ms")]
        rows = self._database.rows(sa.select(*columns).where(_TABLE.c.job_id == job_id))
        found = [Arrival(Slot(*row[:4]), row[4], row[5]) for row in rows]
        return sorted(found, key=lambda arrival: (arrival.stored_at_ms, str(arrival.slot)))

    def arrivals_summed(self, job_id: str) -> list[Arrival]:
        """The same, with the rounds of sessions added up, but for the newest of each: they may be very many."""
        of_job = _TABLE.c.job_id == job_id
        runs = [row.run for row in self._database.rows(sa.select(_TABLE.c.run).where(of_job).distinct())]
        newest: dict[str, int] = {}
        for step, number in (_session_round(run) for run in runs):
            newest[step] = max(newest.get(step, 0), number)
        alone = [run for run in runs if _session_round(run)[1] in (0, newest[_session_round(run)[0]])]
        columns = [_TABLE.c[name] for name in (*_KEY, "size_bytes", "stored_at_ms")]
        rows = self._database.rows(sa.select(*columns).where(of_job, _TABLE.c.run.in_(alone)))
        found = [Arrival(Slot(*row[:4]), row[4], row[5]) for row in rows]
        for step, number in newest.items():
            if number > 1:
                found += self._added_up(step, number)
        return sorted(found, key=lambda arrival: (arrival.began_ms, str(arrival.slot)))

    def _added_up(self, step: str, newest: int) -> list[Arrival]:
        """What came in the rounds of a session before the newest, by kind and ends."""
        ends = [_TABLE.c[name] for name in _KEY[1:]]
        sums = (sa.func.sum(_TABLE.c.size_bytes), sa.func.max(_TABLE.c.stored_at_ms), sa.func.count())
        behind = sa.and_(
            _TABLE.c.job_id == step.partition("/")[0],
            _TABLE.c.run.startswith(f"{step}/", autoescape=True),
            _TABLE.c.run != f"{step}/{newest}",
        )
        query = sa.select(*ends, *sums, sa.func.min(_TABLE.c.stored_at_ms)).where(behind).group_by(*ends)
        run = f"{step}/{newest - 1}"
        return [Arrival(Slot(run, *row[:3]), int(row[3]), *row[4:]) for row in self._database.rows(query)]

    def forget(self, job_id: str) -> None:
        """Remove a job's messages."""
        with self._database.writing() as connection:
            query = sa.select(_TABLE.c.blob).where(_TABLE.c.job_id == job_id, _TABLE.c.blob.is_not(None))
            blobs = list(connection.scalars(query))
            connection.execute(sa.delete(_TABLE).where(_TABLE.c.job_id == job_id))
        self.blobs.remove(blobs)

    def trim(self, runs: Sequence[str]) -> None:
        """Drop the payloads of runs. Their hashes and sizes stay: a slot is written once, also when it is trimmed."""
        for at in range(0, len(runs), _RUNS_AT_ONCE):
            these = _TABLE.c.run.in_(runs[at : at + _RUNS_AT_ONCE])
            with self._database.writing() as connection:
                blobs = list(connection.scalars(sa.select(_TABLE.c.blob).where(these, _TABLE.c.blob.is_not(None))))
                connection.execute(sa.update(_TABLE).where(these).values(payload=None, blob=None))
            self.blobs.remove(blobs)

    def last(self, run: str, kind: str) -> Stored | None:
        """Of what the coordinator keeps for itself in the rounds of a step, the newest that is not trimmed."""
        mine = sa.and_(_TABLE.c.kind == kind, _TABLE.c.sender == COORDINATOR, _TABLE.c.receiver == COORDINATOR)
        there = sa.or_(_TABLE.c.payload.is_not(None), _TABLE.c.blob.is_not(None))
        of_step = sa.and_(_TABLE.c.job_id == run.partition("/")[0], _TABLE.c.run.startswith(f"{run}/", autoescape=True))
        rounds = [
            int(row.run.rpartition("/")[2])
            for row in self._database.rows(sa.select(_TABLE.c.run).where(of_step, mine, there))
        ]
        return self.find(Slot(f"{run}/{max(rounds)}", kind, COORDINATOR, COORDINATOR)) if rounds else None

    def sweep(self) -> None:
        """Remove what is left of uploads that never ended."""
        old = self.blobs.old()
        known = self._database.rows(sa.select(_TABLE.c.blob).where(_TABLE.c.blob.is_not(None)))
        self.blobs.remove(old - {row.blob for row in known})

    def insert(self, slot: Slot, stored: Stored) -> Stored:
        """Record a filled slot; the row is what makes it exist. Returns what stands there now."""
        row = {
            **vars(slot), "job_id": slot.job_id, "size_bytes": stored.size_bytes, "sha256": stored.sha256,
            "payload": stored.payload, "blob": stored.blob, "stored_at_ms": now_ms(),
        }  # fmt: skip
        if not self._inserts.add(row):
            existing = self.find(slot)
            if existing is None:
                raise StoreUnavailable(f"{slot} was removed while it was written.")
            if existing.sha256 != stored.sha256:
                raise Equivocation(f"{slot} holds another message.")
            if existing.blob is None or self.blobs.exists(existing.blob):
                return existing
            # The same bytes, of which the blob was lost: the new one takes its place, unless it was trimmed meanwhile.
            lost = sa.and_(_is(slot), _TABLE.c.blob == existing.blob)
            if not self._database.write(sa.update(_TABLE).where(lost).values(blob=row["blob"])):
                return Stored(stored.size_bytes, stored.sha256)
        return stored


def _session_round(run: str) -> tuple[str, int]:
    """The step that a run belongs to, and the number of a session's round; 0 of other runs."""
    step = step_run(run)
    return step, int(run[len(step) + 1 :] or 0)


class _GroupCommit:
    """Rows that come at the same time share one durable transaction: a disk makes only so many of them a second."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Compiled once: SQLAlchemy keeps no statements that say what to do in a conflict, and a round has dozens.
        # A conflict is not an error here: the others' rows must not fail with it.
        insert = database.insert(_TABLE).on_conflict_do_nothing().returning(_TABLE.c.run)
        self._insert = insert.compile(database.engine)
        self._lock = threading.Lock()
        self._committing = threading.Lock()
        # Each with a place for the answer, whether it is new.
        self._waiting: list[tuple[dict[str, Any], Future[bool]]] = []

    def add(self, values: dict[str, Any]) -> bool:
        """Whether the row is new; durable when this returns."""
        added: Future[bool] = Future()
        with self._lock:
            self._waiting.append((values, added))
        with self._committing:
            # Whoever comes first takes all who wait; the others find their rows done.
            if not added.done():
                with self._lock:
                    batch, self._waiting = self._waiting, []
                self._commit(batch)
        return added.result()

    def _commit(self, batch: list[tuple[dict[str, Any], Future[bool]]]) -> None:
        are_new: list[bool] = []
        try:
            with self._database.writing() as connection:
                for values, _ in batch:
                    are_new.append(connection.execute(self._insert, values).first() is not None)
                    self._database.tell(connection, f"slot {' '.join(values[key] for key in _KEY)}")
        except BaseException as error:
            for _, added in batch:
                added.set_exception(error)
            raise
        for (_, added), is_new in zip(batch, are_new, strict=True):
            added.set_result(is_new)


class Upload(contextlib.AbstractContextManager["Upload"]):
    """A payload on its way in: checked against the announced size and hash before it counts.

    A call may be cut off while one of its threads is still at work here: the lock lets that thread finish before
    `close` decides what becomes of the payload.
    """

    def __init__(self, store: SlotStore, slot: Slot, size_bytes: int) -> None:
        self._store, self._slot, self._size = store, slot, size_bytes
        self._lock = threading.Lock()
        self._digest = hashlib.sha256()
        self._received = 0
        self._inline = bytearray()
        self._blob = new_name() if size_bytes > INLINE_BYTES else None
        self._writer: Writer | None = None
        self._committed = self._closed = False
        if self._blob is not None:
            # The coordinator's own roles take payloads from memory, sites fetch theirs from the blob.
            self._writer = store.blobs.create(self._blob, read_soon=slot.receiver != COORDINATOR)

    def write(self, *chunks: bytes) -> None:
        """Take the next pieces."""
        for chunk in chunks:
            with self._lock:
                self._received += len(chunk)
                if self._received > self._size:
                    raise BadMessage(f"{self._slot} got more bytes than announced ({self._size}).")
                self._digest.update(chunk)
                if self._writer is None:
                    self._inline += chunk
                elif not self._closed:
                    self._writer.write(chunk)

    def sha256(self) -> bytes:
        """The hash of what has come so far."""
        return self._digest.digest()

    def commit(self, announced_sha256: bytes) -> Stored:
        """Make it durable, then let it count. Returns what the slot holds: this, or the same from before."""
        with self._lock:
            if self._received != self._size:
                raise BadMessage(f"{self._slot} was cut short: {self._received} of {self._size} bytes.")
            if self.sha256() != announced_sha256:
                raise BadMessage(f"{self._slot} does not have the announced hash.")
            if self._writer is not None:
                if self._closed:
                    raise StoreUnavailable(f"The delivery of {self._slot} was given up.")
                self._writer.sync()
            payload = None if self._blob else bytes(self._inline)
            fresh = Stored(self._size, announced_sha256, payload, self._blob, self._store.blobs)
            stored = self._store.insert(self._slot, fresh)
            self._committed = stored is fresh
            return stored

    def close(self) -> None:
        """Give back what writing needed, and remove the payload unless it counts."""
        with self._lock:
            self._closed = True
            if self._writer is not None:
                self._writer.close()
            if self._blob is not None and not self._committed:
                with contextlib.suppress(StoreUnavailable):
                    self._store.blobs.remove([self._blob])

    def __exit__(self, *_: object) -> None:
        self.close()


def _is(slot: Slot) -> sa.ColumnElement[bool]:
    return sa.and_(*(_TABLE.c[name] == value for name, value in vars(slot).items()))
