"""How many rows there are at all sites together.

Reveals: that number, to all sites and the coordinator.
"""

from commonscale.pool import Pool
from commonscale.reveal import Reveal
from commonscale.sources.queries import RowCount

ROWS = Reveal("rows", "pooled number of rows")


async def row_count(pool: Pool) -> int:
    """Of all sites."""
    answer = pool.ask(RowCount())
    (rows,) = await pool.add_counts(ROWS, 1, lambda: [answer()])
    return int(rows)
