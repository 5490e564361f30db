"""Files for large payloads. What nobody is going to read soon is written past the page cache where the system can.

The coordinator's roles get such payloads from memory; the file is for a restart. Caching it would only cost memory, and
on a virtual machine that has to ask its host for every new page, most of the time.
"""

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from commonscale.errors import StoreUnavailable

_BUFFER_BYTES = 1 << 20
_BLOCK_BYTES = 4096


@contextlib.contextmanager
def disk_errors(what: str = "The blob directory takes no more") -> Iterator[None]:
    """A disk's failure as one of our errors."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{what}: {error.strerror}.") from None


class FileWriter:
    """A new file, written once from beginning to end, whose name is as durable as what it holds."""

    @disk_errors()
    def __init__(self, path: Path, *, cached: bool) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        direct = 0 if cached else getattr(os, "O_DIRECT", 0)
        try:
            self._file = os.open(path, flags | direct, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # A file system in memory has no other way than through it.
            path.unlink(missing_ok=True)
            self._file = os.open(path, flags, 0o600)
        self._directory = path.parent
        # Direct writes need memory that begins at a page.
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)
        self._filled = self._size = 0

    @disk_errors()
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

    @disk_errors()
    def sync(self) -> None:
        """Write the rest; everything is on disk when this returns, its name too."""
        if self._filled:
            # Whole blocks only; what is too much is cut off again.
            self._flush(-(-self._filled // _BLOCK_BYTES) * _BLOCK_BYTES)
            os.ftruncate(self._file, self._size)
        os.fsync(self._file)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

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
        with contextlib.suppress(OSError):
            os.close(self._file)
        with contextlib.suppress(BufferError):
            self._buffer.close()
