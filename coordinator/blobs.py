"""Where large payloads are kept: files beside the database, or pieces in it, for replicas that share nothing else.

Everything here blocks; callers use threads.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from commonscale.database import Database
from commonscale.errors import StoreUnavailable
from coordinator.blobfile import CachedFile, DirectFile

# An upload that never ended may be removed after this long; a younger one may be another replica's, under way.
ORPHAN_AGE_S = 3600
PIECE_BYTES = 1 << 20

_PIECES = sa.table("payload_pieces", *map(sa.column, ("blob", "number", "stored_at_ms", "content")))


class Writer(Protocol):
    """A new payload, written once from beginning to end."""

    def write(self, chunk: bytes) -> None:
        """Take the next piece."""

    def sync(self) -> None:
        """Everything is durable when this returns."""

    def close(self) -> None:
        """Give back what writing needed."""


class Blobs(Protocol):
    """Payloads by name."""

    def create(self, name: str, *, read_soon: bool) -> Writer:
        """Begin a payload."""

    def chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        """A payload in pieces."""

    def exists(self, name: str) -> bool:
        """Whether it is there."""

    def remove(self, names: Iterable[str]) -> None:
        """Forget payloads; those that are not there do not matter."""

    def old(self) -> set[str]:
        """The names of those that no upload can be writing any more."""


def new_name() -> str:
    """A name that nobody else uses."""
    return secrets.token_hex(16)


class FileBlobs:
    """One file a payload."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def create(self, name: str, *, read_soon: bool) -> Writer:
        """Begin a payload; one that nobody reads soon is not worth a place in the system's cache."""
        path = self._directory / name
        with disk_errors():
            return _FileWriter(path, CachedFile(path) if read_soon else DirectFile(path))

    def chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        """A payload in pieces."""
        path = self._directory / name
        with disk_errors("The blob directory does not give a payload back"), path.open("rb", buffering=0) as file:
            while chunk := file.read(chunk_bytes):
                yield chunk

    def exists(self, name: str) -> bool:
        """Whether it is there."""
        return (self._directory / name).exists()

    def remove(self, names: Iterable[str]) -> None:
        """Forget payloads."""
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    def old(self) -> set[str]:
        """Files that were not touched lately."""
        recent = time.time() - ORPHAN_AGE_S
        return {path.name for path in self._directory.iterdir() if path.stat().st_mtime < recent}


class DatabaseBlobs:
    """Pieces in the database: nothing but it has to be shared and backed up."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, *, read_soon: bool) -> Writer:
        """Begin a payload."""
        return _PieceWriter(self._database, name)

    def chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        """A payload in pieces, each read when it is asked for: no transaction waits for a slow reader."""
        number = 0
        while (piece := self._piece(name, number)) is not None:
            for start in range(0, len(piece), chunk_bytes):
                yield piece[start : start + chunk_bytes]
            number += 1

    def _piece(self, name: str, number: int) -> bytes | None:
        query = sa.select(_PIECES.c.content).where(_PIECES.c.blob == name, _PIECES.c.number == number)
        with self._database.reading() as connection:
            return connection.scalar(query)

    def exists(self, name: str) -> bool:
        """Whether it is there."""
        return self._piece(name, 0) is not None

    def remove(self, names: Iterable[str]) -> None:
        """Forget payloads."""
        with self._database.writing() as connection:
            for name in names:
                connection.execute(sa.delete(_PIECES).where(_PIECES.c.blob == name))

    def old(self) -> set[str]:
        """Payloads whose last piece came long ago."""
        recent = time.time_ns() // 1_000_000 - 1000 * ORPHAN_AGE_S
        last = sa.func.max(_PIECES.c.stored_at_ms)
        query = sa.select(_PIECES.c.blob).group_by(_PIECES.c.blob).having(last < recent)
        with self._database.reading() as connection:
            return set(connection.scalars(query))


class _FileWriter:
    """A new file, whose failures are our errors and whose name is as durable as what it holds."""

    def __init__(self, path: Path, file: CachedFile | DirectFile) -> None:
        self._file = file
        self._directory = path.parent

    def write(self, chunk: bytes) -> None:
        """Take the next piece."""
        with disk_errors():
            self._file.write(chunk)

    def sync(self) -> None:
        """Everything is on disk when this returns, its name too."""
        with disk_errors():
            self._file.sync()
            _sync_directory(self._directory)

    def close(self) -> None:
        """Give back the file."""
        with contextlib.suppress(OSError):
            self._file.close()


class _PieceWriter:
    """Pieces of one size, each durable when it is written."""

    def __init__(self, database: Database, name: str) -> None:
        self._database, self._name = database, name
        self._number = 0
        self._rest = bytearray()

    def write(self, chunk: bytes) -> None:
        """Take the next piece."""
        self._rest += chunk
        while len(self._rest) >= PIECE_BYTES:
            self._insert(bytes(self._rest[:PIECE_BYTES]))
            del self._rest[:PIECE_BYTES]

    def sync(self) -> None:
        """Write what is left."""
        if self._rest:
            self._insert(bytes(self._rest))
            self._rest.clear()

    def close(self) -> None:
        """Nothing is held between two pieces."""

    def _insert(self, content: bytes) -> None:
        row = {
            "blob": self._name, "number": self._number, "stored_at_ms": time.time_ns() // 1_000_000, "content": content,
        }  # fmt: skip
        with self._database.writing() as connection:
            connection.execute(sa.insert(_PIECES).values(row))
        self._number += 1


@contextlib.contextmanager
def disk_errors(what: str = "The blob directory takes no more") -> Iterator[None]:
    """A disk's failure as one of our errors."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{what}: {error.strerror}.") from None


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
