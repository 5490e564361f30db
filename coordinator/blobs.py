"""Where large payloads are kept: files beside the database, or pieces in it, for replicas that share nothing else.

Everything here blocks; callers use threads.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import sqlalchemy as sa

from commonscale.database import Database, now_ms
from coordinator.blobfile import FileWriter, disk_errors

# An upload that never ended may be removed after this long without another byte; one that is under way, perhaps at
# another replica, gets some every minute, or is given up.
ORPHAN_AGE_S = 300
PIECE_BYTES = 1 << 20

_PIECES = sa.table("payload_pieces", *map(sa.column, ("blob", "number", "stored_at_ms", "content")))


def new_name() -> str:
    """A name that nobody else uses."""
    return secrets.token_hex(16)


class FileBlobs:
    """One file a payload."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def create(self, name: str, *, read_soon: bool) -> FileWriter:
        """Begin a payload; one that nobody reads soon is not worth a place in the system's cache."""
        return FileWriter(self._directory / name, cached=read_soon)

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
        """Forget payloads; those that are not there do not matter."""
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    def old(self) -> set[str]:
        """Files that were not touched lately: no upload can be writing them any more."""
        recent = time.time() - ORPHAN_AGE_S
        return {path.name for path in self._directory.iterdir() if _changed_at(path) < recent}


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        # Removed meanwhile: nothing is left to do.
        return float("inf")


class DatabaseBlobs:
    """Pieces in the database: nothing but it has to be shared and backed up."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, *, read_soon: bool) -> PieceWriter:
        """Begin a payload."""
        return PieceWriter(self._database, name)

    def chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        """A payload in pieces, each read when it is asked for: no transaction waits for a slow reader."""
        number = 0
        while (piece := self._piece(name, number)) is not None:
            for start in range(0, len(piece), chunk_bytes):
                yield piece[start : start + chunk_bytes]
            number += 1

    def _piece(self, name: str, number: int) -> bytes | None:
        query = sa.select(_PIECES.c.content).where(_PIECES.c.blob == name, _PIECES.c.number == number)
        return self._database.scalar(query)

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
        recent = now_ms() - 1000 * ORPHAN_AGE_S
        last = sa.func.max(_PIECES.c.stored_at_ms)
        query = sa.select(_PIECES.c.blob).group_by(_PIECES.c.blob).having(last < recent)
        return {row.blob for row in self._database.rows(query)}


class PieceWriter:
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
        row = (self._name, self._number, now_ms(), content)
        self._database.write(sa.insert(_PIECES).values(row))
        self._number += 1


Blobs = FileBlobs | DatabaseBlobs
Writer = FileWriter | PieceWriter
