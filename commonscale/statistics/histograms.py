"""How many values of pooled columns lie between some edges.

Every site counts its values below each inner edge; a sum gives the pooled counts, and their differences are the bins.
As numpy's: a bin has its lower edge, and the last one its upper edge too.

Reveals: the pooled count of each bin, to all sites and the coordinator.
"""

from collections.abc import Sequence

import numpy as np

from commonscale.ordering import Floats, to_keys
from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import CountsAt, Cuts, Integers

BINS = Reveal("bins", "pooled counts of values in bins of equal width between the extremes of each column")


async def histograms(
    pool: Pool, columns: Sequence[str], counts: Sequence[int], edges: Sequence[Floats]
) -> list[Integers]:
    """The counts of each column's bins; `counts` are those of its present values."""
    inner = [part[1:-1] for part in edges]
    # The key before an edge's own: a value at an edge is not below it.
    cuts = [Cuts(at, int(key) - 1) for at, part in enumerate(inner) for key in to_keys(part)]
    # Where there is one bin, it holds all values.
    below = await pool.count(BINS, CountsAt(tuple(columns), tuple(cuts))) if cuts else np.empty(0, dtype=np.uint64)
    each = np.split(below, np.cumsum([len(part) for part in inner])[:-1])
    return [
        np.diff(found, prepend=np.uint64(0), append=np.uint64(count)) for found, count in zip(each, counts, strict=True)
    ]
