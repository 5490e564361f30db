"""Where a daemon keeps collective keys between jobs: one file per set, replaced as a whole.

A set says in which format it was made. One of another format is deleted and counts as absent, so that the sites make a
new one: sets of before format 2 come from a relinearization protocol that showed every site's share to the coordinator.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import structlog
from google.protobuf.message import DecodeError

from commonscale.errors import StateLost
from commonscale.files import private_directory, replace_file
from commonscale.v1.protocols_pb2 import KeySet

log = structlog.get_logger()

# Raised when sets made before must not be used any more.
KEY_SET_FORMAT = 2


class KeyShelf(Protocol):
    """Key sets by name."""

    def get(self, name: str) -> bytes | None:
        """A set, if it is here."""

    def put(self, name: str, content: bytes) -> None:
        """Keep a set, in place of an older one."""

    def drop(self, name: str) -> None:
        """Delete a set, if it is here."""

    def names(self) -> Sequence[str]:
        """Of all sets that are here."""


def current(shelf: KeyShelf, name: str) -> KeySet | None:
    """A set, if it is here and of the current format; one of another format is deleted."""
    content = shelf.get(name)
    if content is None:
        return None
    try:
        found = KeySet.FromString(content)
    except DecodeError:
        found = KeySet()
    if found.format == KEY_SET_FORMAT:
        return found
    shelf.drop(name)
    log.warning("key set of an earlier version deleted", key_set=name, format=found.format)
    return None


def drop_outdated(shelf: KeyShelf) -> None:
    """Delete all sets of another format: a coordinator's would never be asked for again."""
    for name in shelf.names():
        current(shelf, name)


class FileShelf:
    """Key sets in a directory; a site locks its own."""

    def __init__(
        self,
        directory: Path,
        lock: Callable[[bytes, bytes], bytes] = lambda content, _: content,
        unlock: Callable[[bytes, bytes], bytes] = lambda content, _: content,
    ) -> None:
        self._directory = private_directory(directory)
        self._lock, self._unlock = lock, unlock

    def get(self, name: str) -> bytes | None:
        """A set, if it is here."""
        path = self._directory / name
        try:
            return self._unlock(path.read_bytes(), name.encode()) if path.exists() else None
        except StateLost:
            # The vault has another key than before: a new set takes its place.
            return None

    def put(self, name: str, content: bytes) -> None:
        """Keep a set, in place of an older one."""
        replace_file(self._directory / name, self._lock(content, name.encode()))

    def drop(self, name: str) -> None:
        """Delete a set, if it is here."""
        (self._directory / name).unlink(missing_ok=True)

    def names(self) -> Sequence[str]:
        """Of all sets that are here."""
        return sorted(path.name for path in self._directory.iterdir() if not path.name.endswith(".new"))
