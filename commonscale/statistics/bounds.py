"""Bounds of the magnitudes of pooled columns, as powers of two: what numbers are scaled by before encryption.

The normalization vector V_abs of Algorithm 4. Declared by the analyst, or found:
1. A search over keys finds sign and exponent of the largest magnitude: 12 bits.
With declared bounds each site checks its own values, and the search finds only whether a column has any value.

Reveals: for each column the power of two above its largest magnitude (or with declared bounds: nothing of it), and
whether any site has a value; to all sites and the coordinator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commonscale.errors import OutOfRange, Overflow
from commonscale.ordering import NO_VALUE, Floats, Keys, to_keys
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import Extremes
from commonscale.statistics.search import smallest_keys

_EXPONENT_BITS = 12
_MANTISSA_BITS = np.uint64(52)
_BIAS = 1023
# Squares of bounds must be numbers too.
_MAX_EXPONENT = 500

PRESENT = Reveal("bounds", "whether any site has a value in each column")
FOUND = Reveal(
    "bounds", "the power of two above the largest magnitude of each column, and whether any site has a value there"
)
SIDES = Reveal(
    "bounds",
    "the powers of two above the largest and below the smallest value of each column, and whether there is any",
)
AROUND = Reveal("bounds", "the powers of two around the smallest and the largest value of each column")


@dataclass(frozen=True)
class Bounds:
    """One bound per column, and whether any site has a value there."""

    bounds: Floats
    present: NDArray[np.bool_]


async def magnitudes(pool: Pool, columns: Sequence[str], declared: Sequence[float] = ()) -> Bounds:
    """A bound of |x| for each column: declared, or a power of two."""
    answer = pool.ask(Extremes(tuple(columns)))
    limits = np.broadcast_to(np.array(declared or np.inf, dtype=np.float64), len(columns))

    def mine() -> Keys:
        low, high = answer()
        largest = np.maximum(np.abs(low), np.abs(high))
        for column, magnitude, limit in zip(columns, largest, limits, strict=True):
            if magnitude > limit:
                raise OutOfRange(
                    f"{pool.me}: column {column!r} has values beyond the declared max_abs of {limit:g}.",
                    "Declare a larger bound, or leave max_abs out; nothing was sent.",
                )
        return complements(largest)

    if declared:
        low = await smallest_keys(pool, PRESENT, len(columns), mine, 1)
        return Bounds(limits, low >> np.uint64(63) == 0)
    return _powers(await smallest_keys(pool, FOUND, len(columns), mine, _EXPONENT_BITS), columns)


async def sides(pool: Pool, columns: Sequence[str]) -> tuple[Bounds, Bounds]:
    """Bounds of the positive and of the negative values of each column; `present` says whether there are any."""
    answer = pool.ask(Extremes(tuple(columns)))

    def mine() -> Keys:
        low, high = answer()
        largest = np.concatenate([high, -low])
        return complements(np.where(largest > 0, largest, np.nan))

    low = await smallest_keys(pool, SIDES, 2 * len(columns), mine, _EXPONENT_BITS)
    above, below = np.split(low, 2)
    return _powers(above, columns), _powers(below, columns)


async def around(pool: Pool, columns: Sequence[str]) -> tuple[Floats, Floats]:
    """Of columns whose values must all be above zero, the powers of two around them; 1 where there is no value."""
    answer = pool.ask(Extremes(tuple(columns)))

    def mine() -> Keys:
        low, high = answer()
        lowest = np.where(np.isnan(low), NO_VALUE, to_keys(np.nan_to_num(low)))
        return np.concatenate([lowest, complements(high)])

    found = await smallest_keys(pool, AROUND, 2 * len(columns), mine, _EXPONENT_BITS)
    smallest, largest = np.split(found, 2)
    above = _powers(largest, columns)
    # Of zero and of numbers that are nearly zero all bits of the exponent are 0, and of others above zero some are not.
    for column, key, there in zip(columns, smallest, above.present, strict=True):
        if there and key <= to_keys(np.zeros(1))[0]:
            raise OutOfRange(
                f"Column {column!r} has values that are not above zero.",
                "Box-Cox takes none: use family = 'yeo-johnson', or shift the column at every site.",
            )
    exponents = ((smallest >> _MANTISSA_BITS) & np.uint64(0x7FF)).astype(np.int64) - _BIAS
    return np.where(above.present, np.exp2(exponents.clip(-_MAX_EXPONENT, _MAX_EXPONENT)), 1.0), above.bounds


def complements(largest: Floats) -> Keys:
    """Complements of the keys of my largest magnitudes: the search finds the smallest."""
    return np.where(np.isnan(largest), NO_VALUE, ~to_keys(np.nan_to_num(largest)))


def _powers(low: Keys, columns: Sequence[str]) -> Bounds:
    present = low >> _MANTISSA_BITS != NO_VALUE >> _MANTISSA_BITS
    exponents = ((~low >> _MANTISSA_BITS) & np.uint64(0x7FF)).astype(np.int64) - _BIAS + 1
    for column, exponent, there in zip(columns, exponents, present, strict=True):
        if there and exponent > _MAX_EXPONENT:
            raise Overflow(f"Column {column!r} holds numbers too large to compute with.", "Rescale it at every site.")
    return Bounds(np.where(present, np.exp2(exponents.clip(-_MAX_EXPONENT, _MAX_EXPONENT)), 1.0), present)
