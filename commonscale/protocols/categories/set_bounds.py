"""How many values a site may have in each column: a public bound that every site's set is filled up to.

Declared by the analyst, or found:
1. A search finds the smallest power of two that no site's set exceeds (see powers).

Reveals: that power of two (at least 16) for each column, to all sites and the coordinator; a declared bound: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from commonscale.channel import Channel
from commonscale.errors import BadMessage, TooManyCategories
from commonscale.protocols.categories import powers

LEAST = 16
MOST = 1 << 20

REVEALS = "a power of two that no site's number of values in each column exceeds"


async def party(ch: Channel, columns: Sequence[str], sizes: Sequence[int], declared: int) -> list[int]:
    """Role of a site: a bound a column."""
    check(ch, columns, sizes, declared or MOST)
    if declared:
        return [declared] * len(columns)
    return _in_range(await powers.party(ch, [max(size, LEAST) for size in sizes]))


def check(ch: Channel, columns: Sequence[str], sizes: Sequence[int], most: int) -> None:
    """Raise if I have more values than the bound."""
    for column, size in zip(columns, sizes, strict=True):
        if size > most:
            remedy = "Declare a larger max_categories." if most < MOST else "It is hardly categorical; leave it out."
            raise TooManyCategories(f"{ch.me}: column {column!r} has more than {most:,} different values.", remedy)


async def coordinator(ch: Channel, columns: Sequence[str], declared: int) -> list[int]:
    """Role of the coordinator."""
    return [declared] * len(columns) if declared else _in_range(await powers.coordinator(ch, len(columns)))


def _in_range(bounds: Sequence[int]) -> list[int]:
    if any(not LEAST <= bound <= MOST for bound in bounds):
        raise BadMessage(
            "What the sites sent gives no bound that any of them may ask for.", "A site sent a damaged message."
        )
    return list(bounds)
