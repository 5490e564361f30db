"""What the values of all sites have in common: which axis a search may count through.

1. A private OR asks for each column whether any site has a value, whether any value has more than s decimals, for s
   from 0 to 6, and whether any magnitude reaches 16, 16², … The values are then whole numbers of the last decimal, or,
   where six decimals are too few, the binary digits of floats.
2. A private OR asks for each binary digit of the magnitudes below the bound whether it is 1 anywhere, and whether it is
   0 anywhere; and whether there are values below zero, and others. Digits that are the same in all values need no
   search.

A site's 64-bit keys become 1 to 20 digits for most columns of clinical data, and stay 50 to 64 for measured floats.

Reveals: to all sites and the coordinator, the answers: nothing of one site.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonscale.axis import DECIMAL_BITS, MAGNITUDE_BITS, Axis, magnitudes
from commonscale.ordering import Floats
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import Answers, AnyValue

MAX_DECIMALS = 6
# A magnitude is bounded by a power of 16.
_STEP_BITS = 4
_BOUNDS = tuple(2.0**bits for bits in range(_STEP_BITS, DECIMAL_BITS, _STEP_BITS))

GRID = Reveal(
    "grid",
    "how many decimals the values of each column have, up to six; a power of 16 above their magnitudes; whether any "
    "site has a value",
)
VARYING = Reveal(
    "varying",
    "which binary digits of the magnitudes differ between the values of each column, and what the others are: so a "
    "power of two above them, and a constant; whether there are values below zero, and others",
)


@dataclass(frozen=True)
class Decimals(AnyValue):
    """Whether there is any value; one with more than 0, 1, … decimals; one that reaches each bound."""

    title = "whether any value has more than so many decimals, or so large a magnitude"

    @property
    def lengths(self) -> tuple[int, ...]:
        """The same for all."""
        return (2 + MAX_DECIMALS + len(_BOUNDS),) * len(self.columns)

    def holds(self, column: int, values: Floats) -> Answers:
        """By rounding to so many decimals, and back."""
        largest = float(np.abs(values).max(initial=0.0))
        more, left = [], values
        for decimals in range(MAX_DECIMALS + 1):
            scale = 10.0**decimals
            if largest * scale >= 2.0**DECIMAL_BITS:
                more.append(True)
                continue
            left = left[np.rint(left * scale) / scale != left]
            more.append(len(left) > 0)
        return np.array([len(values) > 0, *more, *(largest >= bound for bound in _BOUNDS)])


@dataclass(frozen=True)
class Digits(AnyValue):
    """Whether each binary digit of the magnitudes is 1 anywhere, and 0 anywhere; values below zero; others."""

    title = "whether each binary digit of the magnitudes is the same in all values"

    # For each column, how many decimals it has, and how many binary digits of the magnitude there are to ask for.
    decimals: tuple[int | None, ...]
    bits: tuple[int, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Ones, zeros, and two signs."""
        return tuple(2 * bits + 2 for bits in self.bits)

    def holds(self, column: int, values: Floats) -> Answers:
        """From the lowest digit."""
        whole, bits = magnitudes(values, self.decimals[column]), self.bits[column]
        ones = int(np.bitwise_or.reduce(whole, initial=0))
        zeros = int(np.bitwise_or.reduce(~whole, initial=0))
        digits = [mask >> place & 1 for mask in (ones, zeros) for place in range(bits)]
        return np.array([*digits, (values < 0).any(), (values >= 0).any()], dtype=bool)


@dataclass(frozen=True)
class Axes:
    """One axis per column, and whether any site has a value there."""

    axes: tuple[Axis, ...]
    present: tuple[bool, ...]


async def axes(pool: Pool, columns: Sequence[str]) -> Axes:
    """The axis of each column."""
    names = tuple(columns)
    found = np.array(await pool.any_value(GRID, Decimals(names)))  # 1.
    present, more, reaches = np.split(found, [1, 2 + MAX_DECIMALS], axis=1)
    decimals = tuple(None if row.all() else int(row.argmin()) for row in more)
    bits = tuple(map(_bits, decimals, reaches))
    answers = await pool.any_value(VARYING, Digits(names, decimals, bits))  # 2.
    return Axes(tuple(map(_axis, decimals, answers)), tuple(map(bool, present)))


def _bits(decimals: int | None, reaches: Answers) -> int:
    """How many binary digits a magnitude may have."""
    if decimals is None:
        return MAGNITUDE_BITS
    above: int = 16 ** (1 + int(reaches.sum())) * 10**decimals
    return min((above - 1).bit_length(), DECIMAL_BITS)


def _axis(decimals: int | None, answers: Answers) -> Axis:
    ones, zeros = (sum(1 << at for at in np.flatnonzero(part).tolist()) for part in np.split(answers[:-2], 2))
    negative, positive = answers[-2:]
    return Axis(decimals, ones & zeros, ones & ~zeros, bool(negative), bool(positive))
