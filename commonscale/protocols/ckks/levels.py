"""A circuit as every role follows it: which ciphertexts there are, how high they stand, and which round comes next.

A circuit is one function that all roles run: the coordinator on ciphertexts (circuit.CoordinatorCircuit), a site on
bare level counts (circuit.SiteCircuit), a plan on nothing. Because a site follows the same function step by step, it
knows at every moment which refresh or decryption comes next, and for how many ciphertexts; it answers that and nothing
else. Functions that make a site's own numbers are called at that site alone. Nothing here loads OpenFHE.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from commonscale.reveal import Reveal
from crypto.ckks.arithmetic import Plain, TooFewLevelsError
from crypto.ckks.profiles import Profile

# What collective keys show; here, because a plan says it too.
REUSE = Reveal("reuse", "whether these sites have computed together before, and still hold the keys")
STAND_IN = Reveal("lost", "a lost site's key share, to the first of the others, who stands in for it", "sites")

Numbers = NDArray[np.float64]
# Numbers for one ciphertext each; where there are more than fit into one, several are computed with alike.
Chunks = Sequence[Numbers]
Make = Callable[[], Chunks]
Operation = Literal["add", "sub", "mul"]


@dataclass(frozen=True)
class Handle:
    """Some ciphertexts of the same height; a site holds none of them, only their number."""

    chunks: int
    used: int = 0
    ciphertexts: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Opening:
    """What is opened to everyone: so many numbers of each ciphertext; `finish` leaves out what nobody needs."""

    lengths: Sequence[int]
    reveal: Reveal
    number: int = 0
    towers: int = 1
    finish: Callable[[Numbers], Numbers] = np.asarray


def lengths(count: int, width: int) -> list[int]:
    """How many of so many numbers stand in each ciphertext, if `width` stand in a full one."""
    return [min(width, count - at) for at in range(0, count, width)]


class Circuit(ABC):
    """Levels, and who I am in it: what a role without ciphertexts does. The two ends add messages and arithmetic."""

    def __init__(self, profile: Profile, sites: Sequence[str], me: str) -> None:
        self.profile = profile
        self.sites = sites
        # My place among the sites; of a role without data, the first, whose numbers it never makes.
        self.index = sites.index(me) if me in sites else 0
        # One site, the same for all: what must be added once, it adds.
        self.first = float(me == sites[0])

    def levels(self, a: Handle) -> int:
        """Multiplications left before a refresh."""
        return self.profile.levels - a.used

    def split(self, numbers: Numbers, rest: float = 0.0) -> Chunks:
        """Numbers for as many full ciphertexts as they need, `rest` in the slots that are left."""
        chunks = -(-len(numbers) // self.profile.slots)
        padded = np.full(chunks * self.profile.slots, rest)
        padded[: len(numbers)] = numbers
        return np.split(padded, chunks)

    async def input(self, makes: Sequence[Make], chunks: int) -> list[Handle]:
        """Sums of all sites' numbers, all in one message; a site makes its own."""
        return [Handle(chunks) for _ in makes]

    async def inputs(self, make: Make, chunks: int) -> list[Handle]:
        """All sites' numbers, one handle per site in ring order; a site makes its own."""
        return [Handle(chunks) for _ in self.sites]

    async def refresh(self, handles: Sequence[Handle]) -> list[Handle]:
        """The same at full height, all in one round."""
        return [Handle(handle.chunks) for handle in handles]

    @abstractmethod
    async def open(self, handle: Handle, opening: Opening) -> Numbers:
        """Open ciphertexts to everyone."""

    async def add(self, a: Handle, b: Handle | Plain) -> Handle:
        """A + b."""
        return await self._compute("add", a, b)

    async def sub(self, a: Handle, b: Handle | Plain) -> Handle:
        """A - b."""
        return await self._compute("sub", a, b)

    async def mul(self, a: Handle, b: Handle | Plain) -> Handle:
        """A · b: uses a level."""
        return await self._compute("mul", a, b)

    async def _compute(self, operation: Operation, a: Handle, b: Handle | Plain) -> Handle:
        """How high the result stands."""
        used = max(a.used, b.used) if isinstance(b, Handle) else a.used
        if operation == "mul":
            used += 1
            if used > self.profile.levels:
                raise TooFewLevelsError("a ciphertext must be refreshed before another multiplication")
        return Handle(a.chunks, used)

    async def mul_all(self, pairs: Sequence[tuple[Handle, Handle | Plain]]) -> list[Handle]:
        """Independent products."""
        return [await self.mul(a, b) for a, b in pairs]

    async def rotate(self, a: Handle, steps: int) -> Handle:
        """Slot i takes what was in slot i + steps."""
        return a


class PlannedCircuit(Circuit):
    """A circuit on nothing: notes what would be opened."""

    def __init__(self, profile: Profile, sites: Sequence[str], note: Callable[[Reveal], None]) -> None:
        super().__init__(profile, sites, "")
        self._note = note

    async def open(self, handle: Handle, opening: Opening) -> Numbers:
        """Zeros."""
        self._note(opening.reveal)
        return np.zeros(sum(opening.lengths))
