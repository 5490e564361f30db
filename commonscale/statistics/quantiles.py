"""The k-th ranked elements of pooled columns: any ranks, all columns, in one search.

Algorithms 2 and 3 (PPF robust scaling, PPF-Kth) of "Bridging Local and Federated Data Normalization in FL".

Methods **masks**, **shares** and **ckks** add counts:
1. A sum gives n, the pooled number of present values of every column; ranks follow from n and the quantiles.
2. With masks, two private ORs find an axis that fits the values of all sites (statistics.axes); else values are 64-bit
   keys.
3. A round finds one digit of every answer, as a position on its axis: each interval is cut into m parts; each site
   counts its values up to each cut; a sum gives the pooled counts. The answer lies behind as many cuts as have fewer
   than k values.
4. After all bits, quantiles are interpolated as numpy does.

Searches that still share an interval share their cuts, so three quartiles cost little more than one.

Method **private** does not open the counts, only whether they reach k:
1. As above.
2. Each site encrypts its counts at all cuts, divided by n, once for every search that asks for them. The coordinator
   adds them up (the first site has subtracted (k - 1/2)/n) and computes the sign under encryption. The signs are
   opened: one bit per question, and all bits of a round follow from one digit of the answer.

Method **binary** is the paper's own loop (protocols.ckks.binary).

Differs from the paper: m parts instead of two, bits of a position instead of a range and a precision (so no min-max
first), both neighbours of a quantile (so even and odd counts, ties and duplicates come out exactly).

Reveals: n, and the pooled counts at all cuts (the pooled distribution around each answer), to all sites and the
coordinator, with masks also the axes; `private` reveals n and the answers' digits alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from commonscale.axis import Axis
from commonscale.options import CkksOptions, Prefer
from commonscale.ordering import KEY_BITS, NO_VALUE, Floats, Position, from_keys, interpolate, middle, position
from commonscale.pool import Pool
from commonscale.protocols.ckks.binary import Halving
from commonscale.protocols.ckks.levels import Chunks, Circuit, Opening, lengths
from commonscale.protocols.sums import Yes
from commonscale.reveal import Reveal
from commonscale.sources.queries import CountsAt, Cuts, Integers
from commonscale.statistics.axes import axes
from commonscale.statistics.extremes import extremes
from commonscale.statistics.search import KeySearch
from crypto.ckks.sign import sign

MAX_DIGIT_BITS = 16
# How many counts a round asks for at most, where each search can have one.
CAPACITY: dict[Prefer, int] = {"bytes": 256, "rounds": 4096}
# And how many binary digits it finds along an axis: what is far from an answer is to stay coarse.
_AXIS_DIGIT_BITS: dict[Prefer, int] = {"bytes": 4, "rounds": 8}
# Numbers that one step may ask for.
MAX_ANSWERS = 200_000
# Where method "binary" stops.
EPSILON = 1e-4

# Between 0 and 1, interpolated as numpy does; or the median, for which numpy takes the mean of the middle two.
Level = float | Literal["median"]
MEDIAN: Literal["median"] = "median"

COUNT = Reveal("n", "pooled count of present values of each column")
AT_CUTS = Reveal(
    "search",
    "pooled quantiles of each column, and pooled counts at the cuts of the search: of a column with few possible "
    "values, how often each occurs",
)
# The same where the lowest or the highest rank is asked for, in words that a policy may look for.
ENDS_AT_CUTS = Reveal(AT_CUTS.scope, AT_CUTS.what.replace("column,", "column, pooled minimum and maximum,", 1))
DIGITS = Reveal("digits", "pooled quantiles of each column, digit by digit")
HALVES = Reveal(
    "halves", "pooled quantiles of each column, and pooled counts below and above the middles of the search"
)


@dataclass(frozen=True)
class Quantiles:
    """Counts, and one row of quantiles per column; not-a-number where no site has a value."""

    count: tuple[int, ...]
    values: Floats


def percent(numbers: NDArray[np.floating[Any]]) -> list[Level]:
    """Levels in percent, divided as numpy does: the last digit decides between which neighbours a quantile lies."""
    return [float(number) for number in numbers / 100]


async def quantiles(
    pool: Pool, columns: Sequence[str], levels: Sequence[Level], prefer: Prefer = "bytes", method: str = "masks",
    ckks: CkksOptions | None = None, epsilon: float = EPSILON,
) -> Quantiles:  # fmt: skip
    """The quantiles at some levels."""
    names, ckks = tuple(columns), ckks or CkksOptions()
    if method == "private":
        counts, found = await _private(pool, names, levels, ckks)
    elif method == "binary":
        counts, found = await _binary(pool, names, levels, ckks, epsilon)
    else:
        counts, found = await _by_counts(pool, names, levels, prefer, method, ckks)
    return Quantiles(tuple(map(int, counts)), found)


async def _by_counts(
    pool: Pool, columns: tuple[str, ...], levels: Sequence[Level], prefer: Prefer, method: str, ckks: CkksOptions
) -> tuple[Integers, Floats]:
    async with pool.counter(method, ckks) as counter:
        counts = await counter.count(COUNT, all_values(columns))  # 1.
        if method == "masks":
            found = await axes(pool, columns)  # 2.
            search = RankSearch(counts, levels, CAPACITY[prefer], _AXIS_DIGIT_BITS[prefer], axes=found.axes)
        else:
            # An axis is found by masks, which a site need not allow here.
            search = RankSearch(counts, levels, counter.capacity)
        reveal = ENDS_AT_CUTS if {0.0, 1.0} & {_share(level) for level in levels} else AT_CUTS
        number = 0
        while search:  # 3.
            number += 1
            search.take(search.reached(await counter.count(reveal, search.query(columns), number)))
    return counts, search.values()  # 4.


async def _private(
    pool: Pool, columns: tuple[str, ...], levels: Sequence[Level], ckks: CkksOptions
) -> tuple[Integers, Floats]:
    counts = await pool.count(COUNT, all_values(columns))  # 1.
    async with pool.circuit(ckks, "comparison") as circuit:
        search, number = RankSearch(counts, levels, circuit.profile.slots, shared=False), 0
        size = counts[search.columns].astype(np.float64)
        while search:  # 2.
            number += 1
            query = search.query(columns)
            search.take(await _reached(circuit, number, search.ranks, size, query.length, pool.ask(query)))
    return counts, search.values()


async def _reached(
    circuit: Circuit, number: int, ranks: NDArray[np.int64], size: Floats, questions: int, count: Callable[[], Integers]
) -> NDArray[np.bool_]:
    """Whether the pooled count at each cut reaches the rank of its search; `size` is its column's n."""
    used = lengths(questions, circuit.profile.slots)
    each = questions // len(size)
    n, thresholds = np.repeat(size, each), np.repeat(ranks - 0.5, each)

    def mine() -> Chunks:
        # The thresholds stand with the first site, so that no plain vector differs between ciphertexts.
        return circuit.split(count() / n - circuit.first * thresholds / n, rest=circuit.first)

    (total,) = await circuit.input([mine], len(used))
    found = await sign(circuit, total, resolution=0.5 / float(size.max()))
    return await circuit.open(found, Opening(used, DIGITS, number, finish=np.sign)) > 0


async def _binary(
    pool: Pool, columns: tuple[str, ...], levels: Sequence[Level], ckks: CkksOptions, epsilon: float
) -> tuple[Integers, Floats]:
    """Algorithm 2, lines 20 to 24: one quantile after the other."""
    async with pool.counter("ckks", ckks) as counter:
        counts = await counter.count(COUNT, all_values(columns))
        found = await extremes(pool, columns, method="sequential", ckks=ckks)
        search = Halving(counter, HALVES, columns, counts, found.low, found.high, epsilon)
        return counts, np.stack([await search.quantile(_share(level)) for level in levels], axis=1)


def all_values(columns: tuple[str, ...]) -> CountsAt:
    """How many present values each column has."""
    return CountsAt(columns, tuple(Cuts(index, int(NO_VALUE)) for index in range(len(columns))))


def _share(level: Level) -> float:
    return 0.5 if level == MEDIAN else level


def _cuts(left: NDArray[np.int64], most: int) -> int:
    """How many cuts there are through intervals with so many digits left, if a round finds at most so many of them."""
    return int(((1 << np.minimum(left, most)) - 1).sum())


def _begins(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of some parts, one after the other, begins."""
    begins: NDArray[np.int64] = np.cumsum(lengths) - lengths
    return begins


class RankSearch(KeySearch):
    """The searches for the ranked elements that some quantiles of some columns need. Counts narrow the intervals."""

    def __init__(
        self,
        counts: Integers,
        levels: Sequence[Level],
        capacity: int,
        most_bits: int = MAX_DIGIT_BITS,
        *,
        shared: bool = True,
        axes: Sequence[Axis] = (),
    ) -> None:
        """A round may ask for so many counts, and find so many binary digits; without axes, values are keys."""
        self._positions = [[position(int(n), _share(level)) if n else None for level in levels] for n in counts]
        self._levels, self._capacity, self._most_bits, self._shared = levels, capacity, most_bits, shared
        wanted = sorted({
            (column, rank)
            for column, row in enumerate(self._positions)
            for place in row if place
            for rank in (place.below, place.above)
        })  # fmt: skip
        self.columns, self.ranks = np.array(wanted, dtype=np.int64).reshape(-1, 2).T
        self._axes = tuple(axes)
        super().__init__([self._axes[column].bits if axes else KEY_BITS for column in self.columns])
        self._divide()

    def _divide(self) -> None:
        """Intervals that are still shared are cut once; the number of parts is what one message holds."""
        begins = np.ones(len(self.low), dtype=bool)
        if self._shared:
            # In order of columns and ranks, those of one interval stand together.
            begins[1:] = (np.diff(self.columns) != 0) | (np.diff(self.low) != 0)
        # The first search of each interval, and which interval each search is in.
        self._firsts, self._which = np.flatnonzero(begins), np.cumsum(begins) - 1
        left = self.left[self._firsts]
        fitting = (most for most in range(self._most_bits, 1, -1) if _cuts(left, most) <= self._capacity)
        self._digits = np.minimum(self.left, next(fitting, 1))

    @property
    def digits(self) -> NDArray[np.int64]:
        """As many for all, as long as they have any left."""
        return self._digits

    def query(self, columns: tuple[str, ...]) -> CountsAt:
        """The counts of the next round: up to the last position of each part but the last."""
        at = self._firsts
        steps = np.uint64(1) << (self.left[at] - self._digits[at]).astype(np.uint64)
        each = zip(*(row.tolist() for row in (self.columns[at], self.low[at], steps, self.cuts[at])), strict=True)
        cuts = (Cuts(column, low + step - 1, step, count) for column, low, step, count in each)
        return CountsAt(columns, tuple(cuts), self._axes)

    def reached(self, totals: Integers) -> Yes:
        """Whether the count at each cut reaches the rank, search after search."""
        cuts = self.cuts
        begins = _begins(cuts[self._firsts])[self._which]
        within = np.arange(cuts.sum()) - np.repeat(_begins(cuts), cuts)
        counts = totals[np.repeat(begins, cuts) + within]
        reached: Yes = counts >= np.repeat(self.ranks, cuts).astype(np.uint64)
        return reached

    def take(self, reached: Yes) -> None:
        """One more digit."""
        super().take(reached)
        self._divide()

    def _found(self) -> Floats:
        """The value at the position of each search."""
        if not self._axes:
            return from_keys(self.low)
        ends = np.searchsorted(self.columns, np.arange(len(self._axes)), side="right")
        parts = zip(self._axes, np.split(self.low, ends[:-1]), strict=True)
        return np.concatenate([axis.values(part) for axis, part in parts])

    def values(self) -> Floats:
        """One row per column, one number per quantile; not-a-number where there is no value."""
        pairs = zip(self.columns.tolist(), self.ranks.tolist(), strict=True)
        found = dict(zip(pairs, self._found().tolist(), strict=True))

        def value(column: int, level: Level, place: Position | None) -> float:
            if place is None:
                return float("nan")
            below, above = found[column, place.below], found[column, place.above]
            if level == MEDIAN and place.weight:
                return middle(below, above)
            return interpolate(below, above, place.weight)

        return np.array([
            [value(column, level, place) for level, place in zip(self._levels, row, strict=True)]
            for column, row in enumerate(self._positions)
        ])  # fmt: skip
