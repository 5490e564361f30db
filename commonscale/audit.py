"""A site's audit log: one JSON line for every message that left and every result that was revealed.

Each line holds the hash of the one before, so that a line cannot be changed or removed unnoticed except at
the end; keep the last hash of `commonscale audit verify` elsewhere to notice that too.
"""

import datetime as dt
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commonscale.errors import ConfigError, StoreUnavailable

GENESIS = "0" * 64


class AuditLog:
    """An append-only, hash-chained file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(path)
        entries = verify(path) if path.exists() else []
        self._last = entries[-1]["hash"] if entries else GENESIS
        self._count = len(entries)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, what: str, **fields: Any) -> None:
        """Write a line that is on disk when this returns."""
        with self._lock:
            entry = {
                "number": self._count + 1,
                "at": dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds"),
                "what": what,
                **fields,
                "previous": self._last,
            }
            entry["hash"] = _hash(entry)
            self._write((json.dumps(entry) + "\n").encode())
            self._last = str(entry["hash"])
            self._count += 1

    @property
    def head(self) -> tuple[int, str]:
        """How many lines this log has written, and the hash of the last."""
        with self._lock:
            return self._count, self._last

    def _write(self, line: bytes) -> None:
        """The whole line or nothing of it."""
        before = os.fstat(self._file).st_size
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, before)
            raise StoreUnavailable(
                f"The audit log takes no more: {error.strerror}.",
                "Make room; nothing leaves before it is written down.",
            ) from None

    def close(self) -> None:
        """Give back the file."""
        os.close(self._file)


def verify(path: Path) -> list[dict[str, Any]]:
    """All entries, or ConfigError naming the first line that does not fit."""
    return list(walk(path))


def walk(path: Path, end: int | None = None) -> Iterator[dict[str, Any]]:
    """Entry by entry, each after it was checked; up to a byte, for a file that is being written."""
    previous = GENESIS
    try:
        with path.open("rb") as file:
            number = 0
            while (end is None or file.tell() < end) and (line := file.readline()):
                number += 1
                entry = _checked(path, number, line, previous)
                previous = entry["hash"]
                yield entry
    except OSError as error:
        raise ConfigError(f"Cannot read the audit log {path}: {error.strerror}.") from None


def _checked(path: Path, number: int, line: bytes, previous: str) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = json.loads(line)
        intact = entry["previous"] == previous and entry["number"] == number and entry["hash"] == _hash(entry)
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise ConfigError(
            f"The audit log {path} is broken at line {number}: a line was changed, removed or inserted.",
            "Keep the file as evidence and move it away; the daemon then begins a new one.",
        )
    return entry


def _drop_torn_line(path: Path) -> None:
    """A crash in the middle of a write leaves a line without its end; that message was not sent yet."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


def _hash(entry: dict[str, Any]) -> str:
    body = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
