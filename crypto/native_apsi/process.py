"""The child process from outside: each operation ends within its time limit, with a result or a typed error.

After any error the child is dead: a package that has met one malformed message is not to be trusted with another.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from crypto.native_apsi import child

# Cuckoo hashing into 409 bins, 500 attempts an item: with 330 items it never failed in 20,000 simulated runs, with 340
# once, with 350 in 0.6 %.
LARGEST_SET = 320
LARGEST_LABEL = 10**child.LABEL_BYTES - 1
LIMIT_S = 60.0
# The child ends itself this much later, if nobody is left to kill it.
_GRACE_S = 10
_DUMMY_BYTES = 32
# A blinded item is a point of 32 bytes; what surrounds them in a request is much less than this.
_POINT_BYTES, _AROUND_BYTES = 32, 1024
# The environment may hold the passphrase of a vault: the child gets what Python needs, and nothing else.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")

COMMAND: Sequence[str] = (sys.executable, child.__file__)


class ChildError(ValueError):
    """An operation of the child process came to nothing; the child is dead."""


class CrashError(ChildError):
    """The child ended by itself."""


class TimeLimitError(ChildError):
    """The child was killed at its time limit."""


class BadOutputError(ChildError):
    """The child's reply is none."""


class RejectedError(ChildError):
    """The package raised an error on what it was given."""


S = TypeVar("S", bound="_Process")


class _Process:
    """One child; used by one thread at a time."""

    def __init__(self, command: Sequence[str] | None = None, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._timed_out = threading.Event()
        self._process = _started([*(command or COMMAND), str(int(limit_s) + _GRACE_S)])

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the child, with all that it knows."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            # Closing flushes what the child will never read.
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def call(self, operation: str, *arguments: bytes) -> list[bytes]:
        """One operation; a child that does not end it in time, or not well, is killed."""
        if self._process.poll() is not None:
            raise CrashError(f"The apsi process was gone before {operation}.")
        timer = threading.Timer(self._limit_s, self._time_is_up)
        timer.start()
        try:
            status, *results = self._exchange(operation, arguments)
            if status == child.OK:
                return results
            if status != child.ERROR or len(results) != 1:
                raise BadOutputError(f"The apsi process answered {operation} with neither a result nor an error.")
            name = results[0].decode("ascii", "replace")[:80]
            raise RejectedError(
                f"The apsi package ended {operation} with {name if name.isidentifier() else 'an error'}."
            )
        except ChildError:
            self.close()
            raise
        finally:
            timer.cancel()

    def _exchange(self, operation: str, arguments: Sequence[bytes]) -> list[bytes]:
        """Killing the child ends both directions: no write or read waits longer than the limit."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            child.write_frame(self._process.stdin, [operation.encode(), *arguments])
            return child.read_frame(self._process.stdout)
        except (EOFError, BrokenPipeError):
            raise self._ended(operation) from None
        except ValueError as error:
            raise BadOutputError(f"The apsi process answered {operation} with {error}.") from None

    def _time_is_up(self) -> None:
        self._timed_out.set()
        self._process.kill()

    def _ended(self, operation: str) -> ChildError:
        # A closed pipe comes a moment before the end of the process, or without it.
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return CrashError(f"The apsi process stopped talking during {operation}.")
        if self._timed_out.is_set():
            return TimeLimitError(f"The apsi process did not end {operation} within {self._limit_s:g} s.")
        how = f"of {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return CrashError(f"The apsi process died during {operation} {how}.")

    def _one(self, operation: str, *arguments: bytes) -> bytes:
        results = self.call(operation, *arguments)
        if len(results) != 1 or not results[0]:
            self.close()
            raise BadOutputError(f"The apsi process gave no single result of {operation}.")
        return results[0]


class Holder(_Process):
    """Has items with labels; answers one querier."""

    def open(self, items: Sequence[bytes], labels: Sequence[int], bound: int) -> None:
        """A fresh database, filled up to the bound."""
        if any(not 0 <= label <= LARGEST_LABEL for label in labels):
            raise ValueError(f"A label is a number from 0 to {LARGEST_LABEL}.")
        filled = _filled(items, bound)
        numbers = [*labels, *(0 for _ in filled[len(items) :])]
        # All of one length: what a shorter one leaves free in the package's memory is not ours to send.
        texts = [f"{label:0{child.LABEL_BYTES}d}".encode() for label in numbers]
        pairs = zip(filled, texts, strict=True)
        self.call("holder_open", *(part for pair in pairs for part in pair))

    def oprf(self, request: bytes, bound: int) -> bytes:
        """Step 2, for no more items than agreed."""
        if len(request) > bound * _POINT_BYTES + _AROUND_BYTES:
            self.close()
            raise RejectedError(
                f"A request of {len(request)} bytes is for more than the {bound} items that were agreed."
            )
        return self._one("holder_oprf", request)

    def query(self, query: bytes) -> bytes:
        """Step 4."""
        return self._one("holder_query", query)


class Querier(_Process):
    """Has items; finds their labels at one holder."""

    def request(self, items: Sequence[bytes], bound: int) -> bytes:
        """Step 1, filled up to the bound."""
        self._mine, self._bound = len(items), bound
        return self._one("querier_request", *_filled(items, bound))

    def query(self, oprf_response: bytes) -> bytes:
        """Step 3."""
        return self._one("querier_query", oprf_response)

    def extract(self, response: bytes) -> list[int | None]:
        """Step 5: each item's label, or None if the holder does not have it."""
        labels = self.call("querier_extract", response)
        if len(labels) != self._bound:
            self.close()
            raise BadOutputError("The apsi process gave another number of labels than there are items.")
        return [_number(label) for label in labels[: self._mine]]


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what the package writes there may hold values
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,  # Ctrl-C at a terminal is for the daemon, which then ends its children
        )
    except OSError as error:
        raise CrashError(f"The apsi process cannot be started: {error.strerror}.") from None


def _filled(items: Sequence[bytes], bound: int) -> list[bytes]:
    """As texts, which is what the package takes, with random ones up to the bound."""
    if not len(items) <= bound <= LARGEST_SET:
        raise ValueError(f"{len(items)} items under a bound of {bound}: at most {LARGEST_SET} fit.")
    if len(set(items)) != len(items):
        raise ValueError("An item occurs twice.")
    dummies = [secrets.token_bytes(_DUMMY_BYTES) for _ in range(bound - len(items))]
    return [item.hex().encode() for item in [*items, *dummies]]


def _number(label: bytes) -> int | None:
    if not label:
        return None
    if len(label) != child.LABEL_BYTES or not label.isdigit():
        raise RejectedError("A label is no number.")
    return int(label)
