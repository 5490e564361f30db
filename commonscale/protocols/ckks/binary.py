"""The paper's own search for ranked elements: the baseline that the other variants are measured against.

Algorithms 2 and 3 (PPF robust scaling, PPF-Kth) of "Bridging Local and Federated Data Normalization in FL", as they
stand: counts are opened; minima and maxima (by min-max under encryption) bound the search; one quantile after the other
is found by halving, with two encrypted counts a round, until the interval is shorter than ε.

Differs from the paper: `Lcount` counts values strictly below the middle. With "at or below", as printed, the condition
of line 29 could never hold, because Lcount and Gcount would add up to n.

Reveals: n, minimum and maximum, and the pooled counts below and above every middle, to all sites and the coordinator.
Results are exact to ε/2; where a quantile lies between two values, it is any point between them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commonscale.protocols.count_sum import Integers
from commonscale.transforms.ordering import Floats

# (scope, number of counts, my counts) to the pooled counts: how either role adds.
Add = Callable[[str, int, Callable[[], Integers]], Awaitable[Integers]]
_MAX_ROUNDS = 2000


@dataclass(frozen=True)
class Target:
    """Line 15: K, and whether it is exact or lies between K and K + 1."""

    rank: NDArray[np.int64]
    exact: NDArray[np.bool_]


def target(counts: Integers, quantile: float) -> Target:
    """The ranks of a quantile for every column."""
    virtual = (np.maximum(counts.astype(np.int64), 1) - 1) * quantile
    rank = np.floor(virtual).astype(np.int64)
    return Target(rank + 1, virtual == rank)


async def kth(
    add: Add, name: str, counts: Integers, low: Floats, high: Floats, wanted: Target, epsilon: float,
    values: Sequence[Floats],
) -> Floats:  # fmt: skip
    """Algorithm 3 for one quantile of all columns; a site gives its values in order."""
    n, k = counts.astype(np.int64), wanted.rank
    low, high, found = low.copy(), high.copy(), np.full(len(n), np.nan)
    done = n == 0
    number = 0
    while not done.all() and number < _MAX_ROUNDS:
        number += 1
        middle = np.where(done, found, low + (high - low) / 2)
        below, above = await _counts(add, f"{name}-{number}", middle, values)
        hit = ~done & (below <= np.where(wanted.exact, k - 1, k)) & (above <= n - k)
        found[hit] = middle[hit]
        done |= hit
        # At least K values below the middle: the element is below it too.
        high = np.where(~done & (below >= k), middle, high)
        low = np.where(~done & (below < k), middle, low)
        short = ~done & ((high - low <= epsilon) | (low + (high - low) / 2 <= low))
        found[short] = ((low + high) / 2)[short]
        done |= short
    return found


async def _counts(
    add: Add, scope: str, middle: Floats, values: Sequence[Floats]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lines 10 to 24: two encrypted sums."""

    def below() -> Integers:
        found = [np.searchsorted(x, m, side="left") for x, m in zip(values, middle, strict=True)]
        return np.array(found, dtype=np.uint64)

    def above() -> Integers:
        found = [len(x) - np.searchsorted(x, m, side="right") for x, m in zip(values, middle, strict=True)]
        return np.array(found, dtype=np.uint64)

    less = await add(f"{scope}.less", len(middle), below)
    greater = await add(f"{scope}.greater", len(middle), above)
    return less.astype(np.int64), greater.astype(np.int64)
