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

import secrets
from collections.abc import Sequence

import numpy as np

from commonscale.channel.channel import Channel
from commonscale.errors import BadMessage
from commonscale.hidden import HIDDEN, Hidden, known
from commonscale.protocols.psi.items import Identifiers, Values
from commonscale.reveal import Reveal
from commonscale.v1.protocols_pb2 import RingOffsets, RingTotals

REVEALS = Reveal(
    "ring",
    "how many identifiers the sites before it in the ring took in each column, padding included, and all together",
    "sites",
)


async def allocate(
    ch: Channel, values: Values | Hidden, padding: int, most: Sequence[int]
) -> tuple[Identifiers | Hidden, Sequence[int]]:
    """All roles: identifiers of a site's values that no other site has, and how many all sites took in each column.

    The coordinator has no part in it, and knows only the `most` that they may take.
    """
    ch = ch.under(REVEALS)
    if ch.is_coordinator:
        ch.opens()
        return HIDDEN, most
    counts = known(values).sizes
    at, first, last = ch.sites.index(ch.me), ch.sites[0], ch.sites[-1]
    lots = np.frombuffer(await ch.keep("Lots", lambda: _draw(counts, padding)), "<u4").astype(np.int64)
    taken, places = np.split(lots, [len(counts)])
    # 1. Take my identifiers and pass on what comes after them.
    before = np.zeros_like(taken)
    if ch.me != first:
        before = _checked(ch, ch.sites[at - 1], (await ch.recv(RingOffsets, ch.sites[at - 1])).next, most)
    after = before + taken
    await ch.deliver(ch.sites[(at + 1) % len(ch.sites)], RingOffsets(next=after.tolist()))
    # 2. The totals.
    if ch.me == first:
        sizes = _checked(ch, last, (await ch.recv(RingOffsets, last)).next, most)
        await ch.scatter(RingTotals, {site: lambda: RingTotals(sizes=sizes.tolist()) for site in ch.sites[1:]})
    else:
        sizes = _checked(ch, first, (await ch.recv(RingTotals, first)).sizes, most)
    if (after > sizes).any():
        raise BadMessage(f"{first} sent totals in {ch.prefix}RingTotals of {ch.run} below what {ch.me} has taken.")
    return np.repeat(before, counts) + places, sizes.tolist()


def _draw(counts: Sequence[int], padding: int) -> bytes:
    """How many identifiers I take in each column, and which of them are of my values, in their order."""
    taken = [count + secrets.randbelow(padding + 1) for count in counts]
    lot = secrets.SystemRandom()
    places = [lot.sample(range(size), count) for size, count in zip(taken, counts, strict=True)]
    return np.array([*taken, *(place for column in places for place in column)], dtype="<u4").tobytes()


def _checked(ch: Channel, sender: str, numbers: Sequence[int], most: Sequence[int]) -> Identifiers:
    if len(numbers) != len(most) or any(number > limit for number, limit in zip(numbers, most, strict=True)):
        raise BadMessage(
            f"{sender} sent identifiers in {ch.prefix}Ring of {ch.run} that cannot be: of other columns, or more "
            "identifiers than the public bounds allow."
        )
    return np.array(numbers, dtype=np.int64)
