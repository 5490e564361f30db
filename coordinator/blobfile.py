"""Files for large payloads. What nobody is going to read soon is written past the page cache where the system can.

The coordinator's roles get such payloads from memory; the file is for a restart. Caching it would only cost memory, and
on a virtual machine that has to ask its host for every new page, most of the time.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from pathlib import Path

_BUFFER_BYTES = 1 << 20
_BLOCK_BYTES = 4096


class DirectFile:
    """A new file, written once from beginning to end."""

    def __init__(self, path: Path) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        try:
            self._file = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # A file system in memory has no other way than through it.
            path.unlink(missing_ok=True)
            self._file = os.open(path, flags, 0o600)
        # Direct writes need memory that begins at a page.
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)
        self._filled = self._size = 0

    def write(self, chunk: bytes) -> None:
        """Take the next piece."""
        view = memoryview(chunk)
        self._size += len(view)
        while view:
            part = view[: _BUFFER_BYTES - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == _BUFFER_BYTES:
                self._flush(_BUFFER_BYTES)

    def sync(self) -> None:
        """Write the rest; everything is on disk when this returns."""
        if self._filled:
            # Whole blocks only; what is too much is cut off again.
            self._flush(-(-self._filled // _BLOCK_BYTES) * _BLOCK_BYTES)
            os.ftruncate(self._file, self._size)
        os.fsync(self._file)

    def _flush(self, size: int) -> None:
        rest = memoryview(self._buffer)[:size]
        try:
            while rest:
                written = os.write(self._file, rest)
                rest = rest[written:]
        finally:
            rest.release()
        self._filled = 0

    def close(self) -> None:
        """Give back file and buffer."""
        os.close(self._file)
        with contextlib.suppress(BufferError):
            self._buffer.close()


class CachedFile:
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
