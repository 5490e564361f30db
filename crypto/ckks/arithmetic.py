"""What a circuit is written against: numbers in slots, of which nobody sees any.

A circuit is one function that every role runs. The coordinator runs it on ciphertexts; a party runs it on bare level
counts, so that it knows at every moment what it may be asked for, and answers nothing else.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

H = TypeVar("H")

Plain = float | NDArray[np.float64]


class TooFewLevelsError(ValueError):
    """A ciphertext has no room for another multiplication, or for a refresh."""


class Arithmetic(Protocol[H]):
    """Operations on handles; H is whatever a role knows of a ciphertext."""

    def levels(self, a: H) -> int:
        """Multiplications left before a refresh."""

    async def add(self, a: H, b: H | Plain) -> H:
        """A + b."""

    async def sub(self, a: H, b: H | Plain) -> H:
        """A - b."""

    async def mul(self, a: H, b: H | Plain) -> H:
        """A · b: uses a level."""

    async def mul_all(self, pairs: Sequence[tuple[H, H | Plain]]) -> list[H]:
        """Independent products, at once."""

    async def rotate(self, a: H, steps: int) -> H:
        """Slot i takes what was in slot i + steps."""

    async def refresh(self, handles: Sequence[H]) -> list[H]:
        """The same numbers at full height: one round with all parties."""


async def with_levels(ops: Arithmetic[H], needed: int, handles: Sequence[H]) -> list[H]:
    """The same handles, those refreshed (in one round) that have fewer than `needed` levels left."""
    low = [index for index, handle in enumerate(handles) if ops.levels(handle) < needed]
    found = list(handles)
    if low:
        for index, fresh in zip(low, await ops.refresh([handles[index] for index in low]), strict=True):
            found[index] = fresh
    return found
