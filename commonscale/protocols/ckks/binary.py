"""The paper's own search for ranked elements: the baseline that the other methods are measured against.

Algorithms 2 and 3 (PPF robust scaling, PPF-Kth) of "Bridging Local and Federated Data Normalization in FL", as they
stand: counts are opened; minima and maxima (by min-max under encryption) bound the search; one quantile after the other
is found by halving, with two encrypted counts per round, until the interval is shorter than ε.

Differs from the paper: `Lcount` counts values strictly below the middle. With "at or below", as printed, the condition
of line 29 could never hold, because Lcount and Gcount would add up to n.

Reveals: n, minimum and maximum, and the pooled counts below and above every middle, to all sites and the coordinator.
Results are exact to ε/2; where a quantile lies between two values, it is any point between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commonscale.ordering import Floats, to_keys
from commonscale.pool import Counter
from commonscale.reveal import Reveal
from commonscale.sources.queries import CountsAt, Cuts, Integers

_MAX_ROUNDS = 2000


@dataclass
class Halving:
    """Algorithm 3 for all columns, one quantile after the other."""

    counter: Counter
    reveal: Reveal
    columns: tuple[str, ...]
    counts: Integers
    low: Floats
    high: Floats
    epsilon: float
    _rounds: int = 0

    async def quantile(self, level: float) -> Floats:
        """One quantile per column: the K-th element (line 15), or a point between that and the next."""
        n = self.counts.astype(np.int64)
        virtual = (np.maximum(n, 1) - 1) * level
        k = np.floor(virtual).astype(np.int64) + 1
        most_below = np.where(virtual == k - 1, k - 1, k)
        low, high, found = self.low.copy(), self.high.copy(), np.full(len(n), np.nan)
        done = n == 0
        for _ in range(_MAX_ROUNDS):
            if done.all():
                break
            middle = np.where(done, found, low + (high - low) / 2)
            # Lines 10 to 24: two encrypted sums, of the values below the middle and of those up to it.
            keys = to_keys(np.nan_to_num(middle)).tolist()
            below = await self._count([key - 1 for key in keys])
            above = n - await self._count(keys)
            hit = ~done & (below <= most_below) & (above <= n - k)
            found[hit] = middle[hit]
            done |= hit
            # At least K values below the middle: the element is below it too.
            high = np.where(~done & (below >= k), middle, high)
            low = np.where(~done & (below < k), middle, low)
            # Also where there are no numbers, as in a plan.
            short = ~done & (~(high - low > self.epsilon) | (low + (high - low) / 2 <= low))
            found[short] = ((low + high) / 2)[short]
            done |= short
        return found

    async def _count(self, keys: Sequence[int]) -> NDArray[np.int64]:
        self._rounds += 1
        query = CountsAt(self.columns, tuple(Cuts(index, key) for index, key in enumerate(keys)))
        return (await self.counter.count(self.reveal, query, self._rounds)).astype(np.int64)
