"""The k-th ranked elements of pooled columns: any ranks, all columns, in one search.

Algorithms 2 and 3 (PPF robust scaling, PPF-Kth) of "Bridging Local and Federated Data Normalization in FL", variant
`counts`:
1. Secure sums give n, the pooled number of present values of every column; ranks follow from n and the quantiles.
2. A round finds one digit of every answer, as a 64-bit key: each interval is cut into m parts; each site counts its
   values up to each cut; a secure sum gives the pooled counts. The answer lies behind as many cuts as have fewer than
   k values.
3. After all bits the sites agree on what they were told. Quantiles are interpolated as numpy does.

Searches that still share an interval share their cuts, so three quartiles cost little more than one.

Variant `private` (ckks.ranks) asks only whether a count reaches k; `binary` (ckks.binary) is the paper's own loop.

Differs from the paper: m parts instead of two, bits of the key instead of a range and a precision (so no min-max
first), both neighbours of a quantile (so even and odd counts, ties and duplicates come out exactly).

Reveals: n, and the pooled counts at all cuts (the pooled distribution around each answer), to all sites and the
coordinator; `private` reveals n and the answers' digits alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols import agreement
from commonscale.protocols.count_sum import HubSums, Integers, PartySums
from commonscale.protocols.transcript import Transcript
from commonscale.transforms.ordering import KEY_BITS, Floats, Keys, from_keys, interpolate, middle, position, to_keys

MAX_DIGIT_BITS = 16
MEDIAN = 0.5


class OrderedTable(Protocol):
    """A site's table, as far as ranks need it."""

    def ordered(self, columns: Sequence[str]) -> list[Floats]:
        """The present values of each column, in order."""


class Ranks:
    """The search for the k-th smallest keys, as everyone follows it. Counts that were told narrow the intervals."""

    def __init__(
        self, columns: NDArray[np.int64], ranks: NDArray[np.int64], capacity: int, *, shared: bool = True
    ) -> None:
        self.columns, self.ranks = columns, ranks
        self._shared = shared
        self.low: Keys = np.zeros(len(ranks), dtype=np.uint64)
        self._left = KEY_BITS
        self._capacity = capacity
        self._plan()

    def __bool__(self) -> bool:
        return self._left > 0 and len(self.ranks) > 0

    def _plan(self) -> None:
        """Intervals that are still shared are cut once; the number of parts is what one message holds."""
        pairs = np.stack([self.columns.astype(np.uint64), self.low], axis=1)
        if self._shared:
            pairs, self._which = np.unique(pairs, axis=0, return_inverse=True)
        self._intervals = pairs
        fitting = int(np.log2(self._capacity / max(len(self._intervals), 1) + 1))
        self._digit = max(1, min(fitting, MAX_DIGIT_BITS, self._left))

    @property
    def question_count(self) -> int:
        """How many counts the next round sums."""
        return len(self._intervals) * ((1 << self._digit) - 1)

    def cuts(self) -> tuple[NDArray[np.int64], Keys]:
        """(column, last key of each part but the last), a row an interval."""
        step = np.uint64(1) << np.uint64(self._left - self._digit)
        ends = step * np.arange(1, 1 << self._digit, dtype=np.uint64) - np.uint64(1)
        return self._intervals[:, 0].astype(np.int64), self._intervals[:, 1:] + ends

    def count(self, keys: Sequence[Keys]) -> Integers:
        """How many of my keys are at or below each cut."""
        columns, cuts = self.cuts()
        found = [np.searchsorted(keys[column], row, side="right") for column, row in zip(columns, cuts, strict=True)]
        counts: Integers = np.concatenate(found).astype(np.uint64)
        return counts

    def reached(self, totals: Integers) -> NDArray[np.bool_]:
        """Whether each search's count at each cut reaches its rank."""
        rows = totals.reshape(len(self._intervals), -1)[self._which.ravel()]
        found: NDArray[np.bool_] = rows >= self.ranks[:, np.newaxis].astype(np.uint64)
        return found

    def take(self, reached: NDArray[np.bool_]) -> None:
        """One more digit: as many parts as end before the rank."""
        digits = (~reached).sum(axis=1).astype(np.uint64)
        self._left -= self._digit
        self.low = self.low + (digits << np.uint64(self._left))
        if self._left:
            self._plan()


class Quantiles:
    """Which ranks are needed for some quantiles of some columns, and what they give."""

    def __init__(self, counts: Integers, quantiles: Sequence[float]) -> None:
        self._positions = [
            [position(int(n), q) if n else None for q in quantiles] for n in counts
        ]  # fmt: skip
        self._quantiles = quantiles
        wanted = sorted({
            (column, rank)
            for column, row in enumerate(self._positions)
            for place in row if place
            for rank in (place.below, place.above)
        })  # fmt: skip
        self.columns = np.array([column for column, _ in wanted], dtype=np.int64)
        self.ranks = np.array([rank for _, rank in wanted], dtype=np.int64)

    def values(self, keys: Keys) -> Floats:
        """One row a column, one number a quantile; not-a-number where there is no value."""
        numbers = from_keys(keys)
        found = {(int(c), int(k)): float(x) for c, k, x in zip(self.columns, self.ranks, numbers, strict=True)}

        def value(column: int, at: int) -> float:
            place = self._positions[column][at]
            if place is None:
                return float("nan")
            below, above = found[column, place.below], found[column, place.above]
            if self._quantiles[at] == MEDIAN:
                return middle(below, above) if place.weight else below
            return interpolate(below, above, place.weight)

        shape = (len(self._positions), len(self._quantiles))
        return np.array([[value(c, q) for q in range(shape[1])] for c in range(shape[0])]).reshape(shape)


async def party(
    ch: Channel, table: OrderedTable, columns: Sequence[str], quantiles: Sequence[float], sums: PartySums
) -> tuple[Integers, Floats]:
    """Role of a site: returns n and the quantiles of every column."""
    keys = await own_keys(table, columns)
    transcript = Transcript()
    counted = partial(sizes, keys)
    counts = await sums.add(ch.scope("n"), len(columns), counted, transcript)  # 1.
    wanted = Quantiles(counts, quantiles)
    search, number = Ranks(wanted.columns, wanted.ranks, sums.capacity), 0
    while search:  # 2.
        number += 1
        totals = await sums.add(ch.scope(str(number)), search.question_count, partial(search.count, keys), transcript)
        search.take(search.reached(totals))
    await agreement.party(ch, transcript.digest)  # 3.
    return counts, wanted.values(search.low)


async def coordinator(
    ch: Channel, columns: Sequence[str], quantiles: Sequence[float], sums: HubSums
) -> tuple[Integers, Floats]:
    """Role of the coordinator."""
    transcript = Transcript()
    counts = await sums.add(ch.scope("n"), len(columns), transcript)  # 1.
    wanted = Quantiles(counts, quantiles)
    search, number = Ranks(wanted.columns, wanted.ranks, sums.capacity), 0
    while search:  # 2.
        number += 1
        totals = await sums.add(ch.scope(str(number)), search.question_count, transcript)
        search.take(search.reached(totals))
    await agreement.coordinator(ch)  # 3.
    return counts, wanted.values(search.low)


async def own_keys(table: OrderedTable, columns: Sequence[str]) -> list[Keys]:
    """My values of every column as keys, in order."""
    return [to_keys(values) for values in await offload(table.ordered, columns)]


def sizes(keys: Sequence[Keys]) -> Integers:
    """How many values I have in each column."""
    return np.array([len(column) for column in keys], dtype=np.uint64)
