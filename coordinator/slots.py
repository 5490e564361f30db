"""The relay's slots: written once, durable before they are acknowledged, never held in memory whole.

Small payloads stand in the database, large ones in files beside it. Everything here blocks; callers use threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as sa_postgresql
from sqlalchemy.dialects import sqlite as sa_sqlite

from commonscale.database import Database
from commonscale.errors import BadMessage, CommonscaleError, Equivocation, StoreUnavailable
from commonscale.slot import HUB, Slot
from coordinator.blobfile import DirectFile

INLINE_BYTES = 64 << 10
ORPHAN_AGE_S = 3600

_TABLE = sa.table(
    "slots",
    *map(sa.column, ("run", "kind", "sender", "receiver", "job_id", "size_bytes", "sha256", "payload", "blob")),
)


@dataclass(frozen=True)
class Stored:
    """A filled slot. Its payload is in `payload` or in the file `path`."""

    size_bytes: int
    sha256: bytes
    payload: bytes | None = None
    path: Path | None = None

    def chunks(self, chunk_bytes: int) -> Iterator[bytes]:
        """The payload in pieces; whoever puts them together checks the hash."""
        if self.payload is not None:
            yield self.payload
            return
        assert self.path is not None
        with self.path.open("rb", buffering=0) as file:
            while chunk := file.read(chunk_bytes):
                yield chunk

    def read(self) -> bytes:
        """The payload whole; a damaged file raises instead of giving other bytes than were stored."""
        payload = b"".join(self.chunks(1 << 20))
        if hashlib.sha256(payload).digest() != self.sha256:
            raise StoreUnavailable("A stored payload is damaged.", "Restore the blob directory.")
        return payload


class SlotStore:
    """Slots in a database and a directory of blobs."""

    def __init__(self, database: Database, blobs: Path) -> None:
        self._database = database
        self._blobs = blobs
        self._inserts = _GroupCommit(database)
        blobs.mkdir(parents=True, exist_ok=True)

    def put(self, slot: Slot, payload: bytes) -> Stored:
        """Fill a slot; nothing changes where it holds these bytes already, Equivocation where it holds others."""
        with self.upload(slot, len(payload)) as upload:
            upload.write(payload)
            return upload.commit(upload.sha256())

    def upload(self, slot: Slot, size_bytes: int) -> Upload:
        """Begin to fill a slot piece by piece."""
        return Upload(self, slot, size_bytes)

    def find(self, slot: Slot) -> Stored | None:
        """The slot's contents, if it is filled."""
        query = sa.select(_TABLE.c.size_bytes, _TABLE.c.sha256, _TABLE.c.payload, _TABLE.c.blob).where(_is(slot))
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        return Stored(row.size_bytes, row.sha256, row.payload, self._blobs / row.blob if row.blob else None)

    def job_ids(self) -> set[str]:
        """Every job that has messages here."""
        with self._database.reading() as connection:
            return set(connection.scalars(sa.select(_TABLE.c.job_id).distinct()))

    def slots_of(self, job_id: str) -> list[Slot]:
        """Every filled slot of a job."""
        columns = (_TABLE.c.run, _TABLE.c.kind, _TABLE.c.sender, _TABLE.c.receiver)
        query = sa.select(*columns).where(_TABLE.c.job_id == job_id).order_by(*columns)
        with self._database.reading() as connection:
            return [Slot(*row) for row in connection.execute(query)]

    def forget(self, job_id: str) -> None:
        """Remove a job's messages."""
        with self._database.writing() as connection:
            query = sa.select(_TABLE.c.blob).where(_TABLE.c.job_id == job_id, _TABLE.c.blob.is_not(None))
            blobs = list(connection.scalars(query))
            connection.execute(sa.delete(_TABLE).where(_TABLE.c.job_id == job_id))
        for blob in blobs:
            (self._blobs / blob).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove files of uploads that never ended; recent ones may be another replica's."""
        recent = time.time() - ORPHAN_AGE_S
        with self._database.reading() as connection:
            known = set(connection.scalars(sa.select(_TABLE.c.blob).where(_TABLE.c.blob.is_not(None))))
        for path in self._blobs.iterdir():
            if path.name not in known and path.stat().st_mtime < recent:
                path.unlink(missing_ok=True)

    def insert(self, slot: Slot, stored: Stored) -> Stored:
        """Record a filled slot; the row is what makes it exist. Returns what stands there now."""
        row = {
            "run": slot.run, "kind": slot.kind, "sender": slot.sender, "receiver": slot.receiver,
            "job_id": slot.job_id, "size_bytes": stored.size_bytes, "sha256": stored.sha256,
            "payload": stored.payload, "blob": stored.path.name if stored.path else None,
        }  # fmt: skip
        if not self._inserts.add(row):
            existing = self.find(slot)
            if existing is None:
                raise StoreUnavailable(f"{slot} was removed while it was written.")
            if existing.sha256 != stored.sha256:
                raise Equivocation(f"{slot} holds another message.")
            if existing.path is None or existing.path.exists():
                return existing
            # The same bytes, of which the file was lost: the new one takes its place.
            with self._database.writing() as connection:
                connection.execute(sa.update(_TABLE).where(_is(slot)).values(blob=row["blob"]))
        return stored

    def new_blob(self) -> Path:
        """Where a large payload may be written."""
        return self._blobs / secrets.token_hex(16)


class _GroupCommit:
    """Rows that come at the same time share one durable transaction: a disk makes only so many of them a second."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._committing = threading.Lock()
        self._waiting: list[_Row] = []

    def add(self, values: dict[str, Any]) -> bool:
        """Whether the row is new; durable when this returns."""
        row = _Row(values)
        with self._lock:
            self._waiting.append(row)
        with self._committing:
            # Whoever comes first takes all who wait; the others find their rows done.
            if row.added is None:
                with self._lock:
                    batch, self._waiting = self._waiting, []
                self._commit(batch)
        if row.error is not None:
            raise row.error
        return bool(row.added)

    def _commit(self, batch: list[_Row]) -> None:
        insert = sa_sqlite.insert if self._database.engine.dialect.name == "sqlite" else sa_postgresql.insert
        added: list[bool] = []
        try:
            with self._database.writing() as connection:
                for row in batch:
                    # A conflict is not an error here: the others' rows must not fail with it.
                    statement = insert(_TABLE).values(row.values).on_conflict_do_nothing().returning(_TABLE.c.run)
                    added.append(connection.execute(statement).first() is not None)
        except CommonscaleError as error:
            for row in batch:
                row.added, row.error = False, error
            return
        for row, is_new in zip(batch, added, strict=True):
            row.added = is_new


@dataclass
class _Row:
    values: dict[str, Any]
    added: bool | None = None
    error: CommonscaleError | None = None


class _CachedFile:
    """A new file that is read again soon."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")

    def write(self, chunk: bytes) -> None:
        """Take the next piece."""
        self._file.write(chunk)

    def sync(self) -> None:
        """Everything is on disk when this returns."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Give back the file."""
        self._file.close()


class Upload(contextlib.AbstractContextManager["Upload"]):
    """A payload on its way in: checked against the announced size and hash before it counts.

    A call may be cut off while one of its threads is still at work here: the lock lets that thread finish before
    `close` decides what becomes of the file.
    """

    def __init__(self, store: SlotStore, slot: Slot, size_bytes: int) -> None:
        self._store, self._slot, self._size = store, slot, size_bytes
        self._lock = threading.Lock()
        self._digest = hashlib.sha256()
        self._received = 0
        self._inline = bytearray()
        self._path = store.new_blob() if size_bytes > INLINE_BYTES else None
        self._file: DirectFile | _CachedFile | None = None
        self._committed = self._closed = False
        if self._path is not None:
            with _disk_errors():
                # The coordinator's own roles take payloads from memory, sites fetch theirs from the file.
                self._file = DirectFile(self._path) if slot.receiver == HUB else _CachedFile(self._path)

    def write(self, chunk: bytes) -> None:
        """Take the next piece."""
        with self._lock:
            self._received += len(chunk)
            if self._received > self._size:
                raise BadMessage(f"{self._slot} got more bytes than announced ({self._size}).")
            self._digest.update(chunk)
            if self._file is None:
                self._inline += chunk
            elif not self._closed:
                with _disk_errors():
                    self._file.write(chunk)

    def write_all(self, chunks: Iterable[bytes]) -> None:
        """Take several."""
        for chunk in chunks:
            self.write(chunk)

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
            if self._file is not None and self._path is not None:
                if self._closed:
                    raise StoreUnavailable(f"The delivery of {self._slot} was given up.")
                with _disk_errors():
                    self._file.sync()
                    _sync_directory(self._path.parent)
            payload = None if self._path else bytes(self._inline)
            fresh = Stored(self._size, announced_sha256, payload, self._path)
            stored = self._store.insert(self._slot, fresh)
            self._committed = stored is fresh
            return stored

    def close(self) -> None:
        """Give back the file, and remove it unless it counts."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.close()
            if self._path is not None and not self._committed:
                self._path.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"The blob directory takes no more: {error.strerror}.") from None


def _is(slot: Slot) -> sa.ColumnElement[bool]:
    return sa.and_(
        _TABLE.c.run == slot.run, _TABLE.c.kind == slot.kind,
        _TABLE.c.sender == slot.sender, _TABLE.c.receiver == slot.receiver,
    )  # fmt: skip


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
