"""The audit log as the page reads it: by pages, newest first, and summed up by job. Each line is read once.

The file grows by appending. The trail remembers where every line begins and what it has added up so far; whatever came
since is read in small pieces, with a pause after each, so that a long log never holds up a job. Everything here blocks,
and runs in a thread.
"""

import json
import os
import threading
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonscale.audit import AuditLog, walk
from commonscale.channel.slot import step_run
from commonscale.errors import ConfigError

_PIECE_BYTES = 64 << 10
# The interpreter is somebody else's for a moment after every piece.
_PAUSE_S = 0.0005
_VERIFY_PIECE = 200


@dataclass(frozen=True)
class Left:
    """What one run has sent to one receiver, with all rounds of its session."""

    run: str
    receiver: str
    sealed: bool
    messages: int
    bytes: int

    @property
    def job(self) -> str:
        """The job that the run belongs to."""
        return self.run.partition("/")[0]


class Trail:
    """An index over an audit log that somebody else writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._reset(0)

    def _reset(self, inode: int) -> None:
        self._inode = inode
        # Where each line begins, and where the last one ends.
        self._starts = array("Q", [0])
        self._size = 0
        self._left: dict[str, dict[tuple[str, str, bool], list[int]]] = {}
        self._revealed: dict[str, int] = {}
        self.messages = self.bytes = 0

    @property
    def lines(self) -> int:
        """How many have been read."""
        return len(self._starts) - 1

    @property
    def end(self) -> int:
        """Up to which byte the file was read: the end of a whole line."""
        return self._starts[-1]

    @property
    def unread(self) -> float:
        """The part of the file that has not been read yet."""
        return 1 - self.end / self._size if self._size else 0.0

    def refresh(self, limit_s: float = float("inf")) -> None:
        """Read what has come since; no longer than a time, then call again."""
        stop = time.monotonic() + limit_s
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    self._follow(file.fileno())
                    file.seek(self.end)
                    while time.monotonic() < stop and (piece := file.read(_PIECE_BYTES)):
                        piece += file.readline() if not piece.endswith(b"\n") else b""
                        if not self._take(piece):
                            break
                        time.sleep(_PAUSE_S)
            except FileNotFoundError:
                self._reset(0)
            except OSError as error:
                raise ConfigError(f"Cannot read the audit log {self.path}: {error.strerror}.") from None

    def _follow(self, handle: int) -> None:
        """Start over where the file is another one, or shorter than it was."""
        found = os.fstat(handle)
        if found.st_ino != self._inode or found.st_size < self.end:
            self._reset(found.st_ino)
        self._size = found.st_size

    def _take(self, piece: bytes) -> bool:
        """All whole lines of a piece; says whether there was more than a beginning of one."""
        at = self.end
        *lines, rest = piece.split(b"\n")
        for line in lines:
            at += len(line) + 1
            self._count(line)
            self._starts.append(at)
        return not rest

    def _count(self, line: bytes) -> None:
        entry = _parse(line)
        what = entry.get("what")
        try:
            if what == "sent":
                run, size = step_run(str(entry["run"])), int(entry["bytes"])
                of_job = self._left.setdefault(run.partition("/")[0], {})
                group = of_job.setdefault((run, str(entry["receiver"]), bool(entry["sealed"])), [0, 0])
                group[0] += 1
                group[1] += size
                self.messages += 1
                self.bytes += size
            elif what == "revealed":
                self._revealed[str(entry["job"])] = self.lines + 1
        except (KeyError, TypeError, ValueError):
            # A line that somebody changed; verifying says so.
            return

    def page(self, before: int | None, limit: int) -> list[dict[str, Any]]:
        """Lines, newest first: those before a number, or the newest."""
        with self._lock:
            last = self.lines if before is None else min(max(before - 1, 0), self.lines)
            first = max(last - limit, 0)
            lines = self._read(first, last)
        return [{**_parse(line), "line": first + 1 + index} for index, line in enumerate(lines)][::-1]

    def _read(self, first: int, last: int) -> list[bytes]:
        if first >= last:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(self._starts[first])
                return file.read(self._starts[last] - self._starts[first]).split(b"\n")[:-1]
        except OSError as error:
            raise ConfigError(f"Cannot read the audit log {self.path}: {error.strerror}.") from None

    def left(self, job_id: str) -> list[Left]:
        """What a job has sent, by run and receiver."""
        with self._lock:
            groups = sorted(self._left.get(job_id, {}).items())
            return [Left(run, receiver, sealed, *counts) for (run, receiver, sealed), counts in groups]

    def everything(self) -> Iterator[Left]:
        """The same for all jobs, in the order in which they first sent something."""
        with self._lock:
            jobs = list(self._left)
        for job_id in jobs:
            yield from self.left(job_id)

    def revealed(self, job_id: str) -> dict[str, Any] | None:
        """What the log says that a job has revealed."""
        with self._lock:
            line = self._revealed.get(job_id)
            return _parse(self._read(line - 1, line)[0]) if line else None

    def verify(self, audit: AuditLog) -> dict[str, Any]:
        """Check the chain up to now, and that it holds what the daemon has written."""
        written, last = audit.head
        self.refresh()
        number, found, fault = 0, "", ""
        try:
            for entry in walk(self.path, self.end):
                number, found = entry["number"], entry["hash"]
                if number == written and found != last:
                    raise ConfigError(f"Line {number} of the audit log is not the one that this daemon wrote.")
                if number % _VERIFY_PIECE == 0:
                    time.sleep(_PAUSE_S)
            if number < written:
                raise ConfigError(
                    f"The audit log ends at line {number}; this daemon has written {written}: its end was cut off."
                )
        except ConfigError as error:
            fault = str(error)
        return {"intact": not fault, "entries": number, "last_hash": found, "fault": fault}


def _parse(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    return entry if isinstance(entry, dict) else {"what": "unreadable"}
