"""`otmppsi`: values that at least t sites hold get one identifier; nobody learns which others two sites share.

Over-threshold multi-party private set intersection of Mahdavi et al. 2020, as in section 7.1 of "Privacy-Preserving
Tabular Data Transformation in FL". All columns in one run. The keyholder is the first site of the ring, the
reconstructor the last.
1. Every site gets OPRF tokens of its values from the keyholder (see tokens), and makes shares of them
   (crypto.overthreshold): polynomials through 0 that only the value decides, one a table, at the site's own x.
2. It sends the shares in tables that random numbers fill, sealed, to the reconstructor.
3. The reconstructor tries every t sites on every cell. It tells each site, sealed, in which cells its value is a hit,
   and with whom.
4. The first holder of a value in the ring sends its identifier, sealed, to the other holders.

With t = 2 a share is c·x: all holders have the same share/x = c. Sites send c (a token) instead, and the reconstructor
sorts and merges; `general` takes the long way nevertheless.

Differs from the paper: shares come from an OPRF, so one answer of the keyholder serves any t; but whoever knows a
value's token knows all its shares, and the reconstructor, who sees everyone's tables, would find its own values there
also below the threshold. So with t > 2 the reconstructor never has the tokens of its values: the keyholder answers it
through the coordinator, who takes the blinding away, computes the reconstructor's shares, and sends it these alone. One
share of a value says nothing of the others. Bins hold one share instead of β.

Reveals: to the reconstructor, for each value that t sites hold, which sites hold it (not which value, unless it is
its own); to the holders of such a value, who holds it first in the ring, and to that one, who else (in tables, where
the first has lost its bin, the next one is told). To the coordinator, nothing; but with t > 2 it has the tokens of the
reconstructor's values: together with the keyholder, or with a site that has the same values, it can read them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from commonscale.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage, TooManyCategories
from commonscale.protocols.categories import tokens
from commonscale.protocols.categories.items import Identifiers, Values
from commonscale.protocols.categories.threshold_ways import NO_CLASS, Tables, Tokens
from commonscale.v1 import protocols_pb2 as wire
from crypto import overthreshold
from crypto.overthreshold import EMPTY, Shape

_ENTRY = np.dtype([("class", "<u4"), ("identifier", "<u4")])

REVEALS_HITS = "which sites hold each of the anonymous values that at least {t} sites hold"
REVEALS_OWNERS = "of its own values that at least {t} sites hold: who holds it first in the ring; to that one, who else"
REVEALS_TOKENS = "tokens of the last site's values: nothing, unless the keyholder or a site with the same values helps"

# Interpolations of one reconstruction: about a quarter of an hour; and bytes of one site's tables.
_MOST_WORK = 10**10
_MOST_BYTES = 1 << 30

# What a site's item in a place is, and where a class of values is held: the same for both ways to find hits.
Classes = dict[int, tuple[int, frozenset[int]]]


async def party(
    ch: Channel, values: Values, mine: Identifiers, bound: int, threshold: int, *, general: bool = False
) -> Identifiers:
    """Role of a site: my identifiers, with the first holder's in place of mine where t sites hold a value."""
    items = values.items()
    _check_work(len(ch.parties), Shape(threshold, bound), general or threshold > 2)
    way = Tables(ch, items, Shape(threshold, bound)) if general or threshold > 2 else Tokens(ch, items, bound)
    occupied = await way.send_shares()  # 1. and 2.
    reconstructor = ch.parties[-1]
    if ch.me == reconstructor:
        await way.reconstruct()  # 3.
    hits = await ch.recv(wire.Hits, reconstructor) if ch.me != reconstructor else way.own_hits()
    found = await offload(_classes, ch, hits, occupied, len(items))
    return await _exchange(ch, mine, found, bound)  # 4.


def _check_work(sites: int, shape: Shape, tables: bool) -> None:
    """Raise where trying all t sites on all cells would take hours."""
    tries = math.comb(sites, shape.threshold) * shape.threshold * shape.cells
    if tables and (tries > _MOST_WORK or shape.size_bytes > _MOST_BYTES):
        raise TooManyCategories(
            f"Trying every {shape.threshold} of {sites} sites on {shape.items:,} values takes {tries:.1g} steps.",
            "Take fewer columns in a step, fewer sites, or another threshold.",
        )


async def coordinator(ch: Channel, bound: int, threshold: int) -> None:
    """Role of the coordinator: with t > 2, makes the reconstructor's shares from what says nothing to it."""
    if threshold == 2:
        return
    keyholder, reconstructor = ch.parties[0], ch.parties[-1]
    evaluated = (await ch.recv(wire.EvaluatedItems, keyholder)).points
    inverses = (await ch.recv(wire.Unblinding, reconstructor)).scalars
    points = tokens.split_points(ch, keyholder, evaluated, bound)
    scalars = tokens.split_points(ch, reconstructor, inverses, bound)

    def shares() -> wire.OwnShares:
        found = tokens.finalize(ch, keyholder, scalars, points)
        made = overthreshold.gen_shares(found, len(ch.parties), threshold)
        places = b"".join(map(overthreshold.place_key, found))
        return wire.OwnShares(places=places, shares=overthreshold.to_bytes(made))

    await ch.send(reconstructor, wire.OwnShares, partial(offload, shares))


def _classes(ch: Channel, hits: wire.Hits, occupied: NDArray[np.int64], items: int) -> list[Classes]:
    """For each of my items its classes and their members; dummies are no items."""
    sites, width = len(ch.parties), (len(ch.parties) + 7) // 8
    if len(hits.classes) != 4 * len(occupied) or len(hits.members) != width * len(occupied):
        raise BadMessage(f"{ch.parties[-1]} sent Hits of another size in {ch.run} than there are places.")
    classes = np.frombuffer(hits.classes, "<u4")
    bits = np.unpackbits(np.frombuffer(hits.members, np.uint8).reshape(-1, width), axis=1, count=sites)
    found: list[Classes] = [{} for _ in range(items)]
    for place in np.flatnonzero((classes != NO_CLASS) & (occupied != EMPTY)).tolist():
        found[occupied[place]][int(classes[place])] = (place, frozenset(np.flatnonzero(bits[place]).tolist()))
    return found


async def _exchange(ch: Channel, mine: Identifiers, found: Sequence[Classes], bound: int) -> Identifiers:
    """Step 4: each holder takes the identifier of the first."""
    me = ch.parties.index(ch.me)
    members = [frozenset[int]().union(*(group for _, group in classes.values())) for classes in found]
    entries: dict[int, list[tuple[int, int]]] = {site: [] for site in range(me + 1, len(ch.parties))}
    for number, (classes, group) in enumerate(zip(found, members, strict=True)):
        if group and min(group) == me:
            for site in group - {me}:
                common = next(c for c, (_, both) in classes.items() if site in both)
                entries[site].append((common, int(mine[number])))
    messages = {ch.parties[site]: partial(_identifiers, pairs, bound) for site, pairs in entries.items()}
    await ch.scatter(wire.ClassIdentifiers, messages)
    adopted = mine.copy()
    of_class = {number: item for item, classes in enumerate(found) for number in classes}
    earlier = ch.parties[:me]
    received = await concurrently([partial(ch.recv, wire.ClassIdentifiers, site) for site in earlier])
    for name, message in zip(earlier, received, strict=True):
        for number, identifier in _entries(ch, name, message.entries, bound):
            if number not in of_class:
                raise BadMessage(f"{name} sent an identifier in {ch.run} of a value that {ch.me} does not share.")
            adopted[of_class[number]] = min(int(adopted[of_class[number]]), identifier)
    return adopted


def _identifiers(pairs: Sequence[tuple[int, int]], bound: int) -> wire.ClassIdentifiers:
    """Filled up to the bound: the length says nothing."""
    rows = np.array([*pairs, *((NO_CLASS, 0),) * (bound - len(pairs))], dtype=_ENTRY)
    return wire.ClassIdentifiers(entries=rows.tobytes())


def _entries(ch: Channel, site: str, raw: bytes, bound: int) -> list[tuple[int, int]]:
    if len(raw) != _ENTRY.itemsize * bound:
        raise BadMessage(f"{site} sent {len(raw)} bytes of identifiers in {ch.run} instead of {8 * bound}.")
    rows = np.frombuffer(raw, _ENTRY)
    return [(int(row["class"]), int(row["identifier"])) for row in rows if row["class"] != NO_CLASS]
