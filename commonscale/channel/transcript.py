"""Everything that was announced so far in a run, as one hash: what the next question follows from."""

import hashlib


class Transcript:
    """A hash chain. Two roles with the same chain have been shown the same, in the same order."""

    def __init__(self, start: bytes = b"") -> None:
        self.digest = hashlib.sha256(b"commonscale/v1/transcript\0" + start).digest()
        # Whether the sites have something to agree on.
        self.open = False

    def add(self, announced: bytes) -> None:
        """Append what was announced."""
        self.digest = hashlib.sha256(self.digest + hashlib.sha256(announced).digest()).digest()
        self.open = True

    def resume(self, digest: bytes) -> None:
        """Go on from where the sites have agreed."""
        self.digest = digest
        self.open = False

    def settle(self) -> None:
        """The sites have agreed on everything so far."""
        self.open = False
