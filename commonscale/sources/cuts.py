"""How many keys are at or below evenly spaced cuts: from pieces of a column, or from a whole column kept in order."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from commonscale.axis import KEYS, Axis
from commonscale.ordering import Floats, Keys, to_keys
from commonscale.sources.queries import Cuts, Integers

# Of all columns of one source together. Eight bytes per value: 33 million of them.
KEPT_KEYS_BYTES = 256 << 20

_KEY_BYTES = 8

Pieces = Callable[[Sequence[str]], Iterable[Sequence[Floats]]]


def counts_up_to(ranges: Sequence[Cuts], ordered: Keys, axis: Axis = KEYS) -> list[Integers]:
    """For all cuts through one column, how many of these keys, which are in order, are at or below each."""
    inside = [_inside(cuts, (1 << axis.bits) - 1) for cuts in ranges]
    # All at once: a search has many ranges of few cuts.
    positions = np.concatenate([np.empty(0, dtype=np.uint64), *(positions for _, positions in inside)])
    found = np.searchsorted(ordered, axis.keys(positions), side="right").astype(np.uint64)
    each = np.split(found, np.cumsum([len(positions) for _, positions in inside])[:-1])
    counts = []
    for cuts, (below, positions), known in zip(ranges, inside, each, strict=True):
        above = np.full(cuts.count - below - len(positions), len(ordered), dtype=np.uint64)
        counts.append(np.concatenate([np.zeros(below, dtype=np.uint64), known, above]))
    return counts


def _inside(cuts: Cuts, largest: int) -> tuple[int, Keys]:
    """How many cuts are below all positions, and those that are positions; the others are above all."""
    step = max(cuts.step, 1)
    below = min(cuts.count, max(0, -(cuts.first // step)))
    above = min(cuts.count - below, max(0, cuts.count - 1 - (largest - cuts.first) // step))
    count = cuts.count - below - above
    if not count:
        return below, np.empty(0, dtype=np.uint64)
    # A step of 2^64 or more has only one cut inside.
    spacing = np.uint64(step if count > 1 else 1)
    return below, np.uint64(cuts.first + below * step) + spacing * np.arange(count, dtype=np.uint64)


class CutCounter:
    """The counts for all cuts through one column, from its values a piece at a time."""

    def __init__(self, ranges: Sequence[Cuts], axis: Axis) -> None:
        self._ranges, self._axis = ranges, axis
        self.counts: list[Integers] = [np.zeros(cuts.count, dtype=np.uint64) for cuts in ranges]

    def add(self, values: Floats) -> None:
        """Count these values too."""
        keys = to_keys(values)
        # Sorting a piece takes about as long as finding the place of each key in one range, and serves all ranges.
        keys.sort()
        more = counts_up_to(self._ranges, keys, self._axis)
        self.counts = [before + here for before, here in zip(self.counts, more, strict=True)]


class OrderedKeys:
    """Columns as keys in order, kept as long as they fit: a search asks for the same columns in every round.

    Never more than `limit_bytes`, also while they are made. Columns that were not asked for longest go first.
    """

    def __init__(self, limit_bytes: int = KEPT_KEYS_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._snapshot = ""
        self._kept: OrderedDict[str, Keys] = OrderedDict()

    @property
    def kept_bytes(self) -> int:
        """The memory that is in use."""
        return sum(keys.nbytes for keys in self._kept.values())

    def of(self, snapshot: str, columns: Sequence[str], rows: int, pieces: Pieces) -> dict[str, Keys]:
        """As many of these columns as fit, each with its keys in order; `pieces` reads present values."""
        # Who asks for a column that another thread is putting in order waits for it.
        with self._lock:
            if snapshot != self._snapshot:
                self._kept.clear()
                self._snapshot = snapshot
            known = [column for column in columns if column in self._kept]
            for column in known:
                self._kept.move_to_end(column)
            fresh = self._make_room(columns, known, rows)
            if fresh:
                self._kept.update(zip(fresh, _in_order(pieces(fresh), len(fresh), rows), strict=True))
            return {column: self._kept[column] for column in (*known, *fresh)}

    def _make_room(self, columns: Sequence[str], known: Sequence[str], rows: int) -> list[str]:
        """Which further columns are to be kept, after others have gone for them."""
        each = max(rows, 1) * _KEY_BYTES
        free = self._limit_bytes - sum(self._kept[column].nbytes for column in known)
        fresh = [column for column in columns if column not in self._kept][: free // each]
        while fresh and self.kept_bytes + len(fresh) * each > self._limit_bytes:
            # Those of this query were moved to the end: the first is of an earlier one.
            self._kept.popitem(last=False)
        return fresh


def _in_order(pieces: Iterable[Sequence[Floats]], columns: int, rows: int) -> list[Keys]:
    kept: list[Keys] = [np.empty(rows, dtype=np.uint64) for _ in range(columns)]
    ends = [0] * columns
    for piece in pieces:
        for index, values in enumerate(piece):
            kept[index][ends[index] : ends[index] + len(values)] = to_keys(values)
            ends[index] += len(values)
    for keys, end in zip(kept, ends, strict=True):
        # In place: a copy would need the memory twice.
        keys.resize(end, refcheck=False)
        keys.sort()
        keys.flags.writeable = False
    return kept
