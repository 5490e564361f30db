"""Round-robin identifier allocation: identifiers that no two sites have in common, all columns in one pass.

Section 7.1 of "Privacy-Preserving Tabular Data Transformation in FL":
1. The first site takes the identifiers from 0 for its values and sends the next free one of each column, sealed, to
   the second; each site goes on from there; the last sends the totals to the first.
2. The first site sends the totals to all others.

Differs from the paper: a site takes up to `padding` more identifiers than it has values, as many as it draws by lot,
and scatters its values among them. Without that the second site would know the first one's number of values, and any
two sites that talk to each other that of those between them.

Reveals: to each site, how many identifiers the sites before it took together (values and padding), and all sites
together. Nothing to the coordinator.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonscale.channel import Channel
from commonscale.errors import BadMessage
from commonscale.protocols.categories import set_bounds
from commonscale.protocols.categories.items import Identifiers
from commonscale.v1.protocols_pb2 import RingOffsets, RingTotals

REVEALS = "how many identifiers the sites before it in the ring took in each column, padding included, and all together"


@dataclass(frozen=True)
class Allocation:
    """Identifiers of my values, an array a column, and how many there are at all sites."""

    mine: list[Identifiers]
    sizes: list[int]


async def party(ch: Channel, columns: Sequence[str], counts: Sequence[int], padding: int) -> Allocation:
    """Role of a site with so many values in each column."""
    set_bounds.check(ch, columns, counts, set_bounds.MOST)
    # More than all sites together may take, and one is damaged or lies.
    most = len(ch.parties) * (set_bounds.MOST + padding)
    first, last = ch.parties[0], ch.parties[-1]
    at = ch.parties.index(ch.me)
    lots = await ch.keep("Lots", lambda: _draw(counts, padding))
    taken, places = _read(lots, counts)
    # 1. Take my identifiers and pass on what comes after them.
    before = [0] * len(counts)
    if ch.me != first:
        before = _checked(
            ch, ch.parties[at - 1], (await ch.recv(RingOffsets, ch.parties[at - 1])).next, len(counts), most
        )
    after = [start + size for start, size in zip(before, taken, strict=True)]
    await ch.send(ch.parties[(at + 1) % len(ch.parties)], RingOffsets, lambda: RingOffsets(next=after))
    # 2. The totals.
    if ch.me == first:
        sizes = _checked(ch, last, (await ch.recv(RingOffsets, last)).next, len(counts), most)
        await ch.scatter(RingTotals, {site: lambda: RingTotals(sizes=sizes) for site in ch.parties[1:]})
    else:
        sizes = _checked(ch, first, (await ch.recv(RingTotals, first)).sizes, len(counts), most)
    if any(end > size for end, size in zip(after, sizes, strict=True)):
        raise BadMessage(f"{first} sent totals in {ch.prefix}RingTotals of {ch.run} below what {ch.me} has taken.")
    return Allocation([start + place for start, place in zip(before, places, strict=True)], sizes)


def _draw(counts: Sequence[int], padding: int) -> bytes:
    """How many identifiers I take in each column, and which of them are of my values, in their order."""
    taken = [count + secrets.randbelow(padding + 1) for count in counts]
    lot = secrets.SystemRandom()
    places = [lot.sample(range(size), count) for size, count in zip(taken, counts, strict=True)]
    return np.array([*taken, *(place for column in places for place in column)], dtype="<u4").tobytes()


def _read(lots: bytes, counts: Sequence[int]) -> tuple[list[int], list[Identifiers]]:
    numbers = np.frombuffer(lots, "<u4").astype(np.int64)
    taken, *places = np.split(numbers, np.cumsum([len(counts), *counts])[:-1])
    return taken.tolist(), places


def _checked(ch: Channel, sender: str, numbers: Sequence[int], columns: int, most: int) -> list[int]:
    if len(numbers) != columns or any(number > most for number in numbers):
        raise BadMessage(f"{sender} sent identifiers in {ch.prefix}Ring of {ch.run} that cannot be.")
    return list(numbers)
