"""Everything that was opened so far in a search, as one hash: what the next question follows from."""

from __future__ import annotations

import hashlib


class Transcript:
    """A hash chain. Two roles with the same chain have been told the same, in the same order."""

    def __init__(self, start: bytes = b"") -> None:
        self.digest = hashlib.sha256(b"commonscale/v1/transcript\0" + start).digest()

    def add(self, told: bytes) -> None:
        """Append what was told."""
        self.digest = hashlib.sha256(self.digest + hashlib.sha256(told).digest()).digest()
