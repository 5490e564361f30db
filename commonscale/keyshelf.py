"""Where a daemon keeps collective keys between jobs: one file a set, replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from commonscale.errors import StateLost
from commonscale.files import private_directory, replace_file


class KeyShelf(Protocol):
    """Key sets by name."""

    def get(self, name: str) -> bytes | None:
        """A set, if it is here."""

    def put(self, name: str, content: bytes) -> None:
        """Keep a set, in place of an older one."""


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
