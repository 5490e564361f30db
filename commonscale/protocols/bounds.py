"""Bounds of the magnitudes of pooled columns, as powers of two: what numbers are scaled by before encryption.

The normalization vector V_abs of Algorithm 4. Declared by the analyst, or found:
1. A search over keys (see extremes) finds sign and exponent of the largest magnitude: 12 bits.
With declared bounds each site checks its own values, and the search finds only whether a column has any value.

Reveals: for each column the power of two above its largest magnitude (or with declared bounds: nothing of it), and
whether any site has a value; to all sites and the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.errors import OutOfRange, Overflow
from commonscale.protocols.extremes import TableExtremes, search_coordinator, search_party
from commonscale.transforms.ordering import NO_VALUE, Floats, Keys, to_keys

_EXPONENT_BITS = 12
_MANTISSA_BITS = np.uint64(52)
_BIAS = 1023
# Squares of bounds must be numbers too.
_SMALLEST, _LARGEST = 2.0**-500, 2.0**500


@dataclass(frozen=True)
class Bounds:
    """One bound a column, and whether any site has a value there."""

    bounds: Floats
    present: NDArray[np.bool_]


def reveals(declared: Sequence[float]) -> str:
    """What everyone learns."""
    there = "whether any site has a value in each column"
    return there if declared else f"the power of two above the largest magnitude of each column, and {there}"


async def party(ch: Channel, table: TableExtremes, columns: Sequence[str], declared: Sequence[float]) -> Bounds:
    """Role of a site."""
    mine = await offload(_own, ch.me, table, columns, declared)
    return _bounds(await search_party(ch, mine, _bits(declared)), columns, declared)


async def coordinator(ch: Channel, columns: Sequence[str], declared: Sequence[float]) -> Bounds:
    """Role of the coordinator."""
    return _bounds(await search_coordinator(ch, len(columns), _bits(declared)), columns, declared)


def _bits(declared: Sequence[float]) -> int:
    return 1 if declared else _EXPONENT_BITS


def _own(site: str, table: TableExtremes, columns: Sequence[str], declared: Sequence[float]) -> Keys:
    """Complements of the keys of my largest magnitudes."""
    found = table.extremes(columns)
    largest = np.array([max(abs(pair[0]), abs(pair[1])) if pair else 0.0 for pair in found])
    if declared:
        for column, magnitude, bound in zip(columns, largest, np.broadcast_to(declared, len(columns)), strict=True):
            if magnitude > bound:
                raise OutOfRange(
                    f"{site}: column {column!r} has values beyond the declared max_abs of {bound:g}.",
                    "Declare a larger bound, or leave max_abs out; nothing was sent.",
                )
    present = np.array([pair is not None for pair in found])
    return np.where(present, ~to_keys(largest), NO_VALUE)


def _bounds(low: Keys, columns: Sequence[str], declared: Sequence[float]) -> Bounds:
    if declared:
        return Bounds(np.broadcast_to(np.asarray(declared, dtype=np.float64), len(columns)), low >> np.uint64(63) == 0)
    present = low >> _MANTISSA_BITS != NO_VALUE >> _MANTISSA_BITS
    exponents = ((~low >> _MANTISSA_BITS) & np.uint64(0x7FF)).astype(np.int64) - _BIAS + 1
    for column, exponent, there in zip(columns, exponents, present, strict=True):
        if there and exponent > np.log2(_LARGEST):
            raise Overflow(f"Column {column!r} holds numbers too large to compute with.", "Rescale it at every site.")
    return Bounds(np.where(present, np.clip(np.exp2(exponents.clip(-500, 500)), _SMALLEST, _LARGEST), 1.0), present)
