"""`otmppsi`: values that at least t sites hold get one identifier; nobody learns which others two sites share.

Over-threshold multi-party private set intersection of Mahdavi et al. 2020, as in section 7.1 of "Privacy-Preserving
Tabular Data Transformation in FL". All columns in one run. The keyholder is the first site of the ring, the
reconstructor the last.
1. Every site gets OPRF tokens of its values from the keyholder (see tokens), and makes shares of them
   (crypto.overthreshold): polynomials through 0 that only the value decides, one per table, at the site's own x.
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

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage, TooManyCategories
from commonscale.hidden import HIDDEN, Hidden, known
from commonscale.protocols.psi import tokens
from commonscale.protocols.psi.items import Identifiers, Values
from commonscale.reveal import Reveal
from commonscale.v1 import protocols_pb2 as wire
from crypto import oprf, overthreshold
from crypto.overthreshold import EMPTY, Shape

NO_CLASS = 0xFFFF_FFFF
_ENTRY = np.dtype([("class", "<u4"), ("identifier", "<u4")])
# Interpolations of one reconstruction: about a quarter of an hour; and bytes of one site's tables.
_MOST_WORK = 10**10
_MOST_BYTES = 1 << 30

# A class of equal values: its number, and the place of the value at each of the sites (by their number) that hold it.
Class = tuple[int, Mapping[int, int]]


def reveals(threshold: int) -> list[Reveal]:
    """What a run shows: to the reconstructor, to the holders and, with t > 2, to the coordinator."""
    hits = f"which sites hold each of the anonymous values that at least {threshold} sites hold"
    owners = (
        f"of its own values that at least {threshold} sites hold: who holds it first in the ring; to that one, who else"
    )
    unblinding = "tokens of the last site's values: nothing, unless the keyholder or a site with the same values helps"
    found = [Reveal("hits", hits, "last site"), Reveal("owners", owners, "sites")]
    return found if threshold == 2 else [*found, Reveal("tokens", unblinding, "coordinator")]


async def merge(
    ch: Channel, values: Values | Hidden, mine: Identifiers | Hidden, bound: int, threshold: int, *, general: bool
) -> Identifiers | Hidden:
    """All roles: a site's identifiers, with the first holder's in place of its own where t sites hold a value."""
    ch = ch.scope("psi")
    shares_ch, owners_ch, *relays = [ch.under(reveal) for reveal in reveals(threshold)]
    relay = relays[0] if relays else None
    if ch.is_coordinator:
        if relay is not None:
            await _make_last_shares(relay, bound, threshold)
        shares_ch.opens()
        owners_ch.opens()
        return HIDDEN
    items = known(values).items()
    if general or threshold > 2:
        occupied, found = await _by_tables(shares_ch, relay, items, Shape(threshold, bound))
    else:
        occupied, found = await _by_tokens(shares_ch, items, bound)
    if relay is not None:
        relay.opens()
    reconstructor = ch.sites[-1]
    if ch.me == reconstructor:
        *others, hits = await offload(_hits, found, len(occupied), len(ch.sites))
        for site, theirs in zip(ch.others, others, strict=True):
            await owners_ch.deliver(site, theirs)
    else:
        hits = await owners_ch.recv(wire.Hits, reconstructor)
    members = await offload(_members, ch, hits, occupied, len(items))
    return await _exchange(owners_ch, known(mine), members, bound)  # 4.


async def _by_tables(
    ch: Channel, relay: Channel | None, items: Sequence[bytes], shape: Shape
) -> tuple[NDArray[np.int64], list[Class]]:
    """Steps 1 to 3 for any t: which of my items stands in each cell; at the reconstructor, the classes."""
    _check_work(len(ch.sites), shape)
    last = ch.sites[-1]
    if relay is not None and ch.me == last:
        places, shares = await _own_shares(relay, items, shape.items)
    else:
        found = await tokens.tokens_of(ch, items, shape.items, relay)
        places = list(map(overthreshold.place_key, found))
        shares = await offload(overthreshold.gen_shares, found, ch.sites.index(ch.me) + 1, shape.threshold)
    occupied = (await offload(overthreshold.occupants, places, shape)).ravel()

    def filled() -> bytes:
        return overthreshold.to_bytes(overthreshold.fill(shares, occupied))

    if ch.me != last:
        await ch.send(last, wire.ShareTables, partial(offload, lambda: wire.ShareTables(shares=filled())))
        return occupied, []
    own = overthreshold.from_bytes(await ch.keep("OwnTables", filled), shape.cells)
    received = await ch.gather(wire.ShareTables)
    theirs = [_shares(ch, site, message.shares, shape.cells) for site, message in received.items()]
    hits = await offload(overthreshold.reconstruct, dict(enumerate([*theirs, own])), shape.threshold)
    return occupied, [(hit.cell, dict.fromkeys(hit.members, hit.cell)) for hit in hits]


async def _by_tokens(ch: Channel, items: Sequence[bytes], bound: int) -> tuple[NDArray[np.int64], list[Class]]:
    """Steps 1 to 3 for t = 2: which of my items stands in each place; at the reconstructor, the classes."""
    found = await tokens.tokens_of(ch, items, bound)
    sent, where = await tokens.send_mixed(ch, ch.sites[-1], found, [len(found)], [bound])
    occupied = np.full(bound, EMPTY, dtype=np.int64)
    occupied[where] = np.arange(len(where))
    if ch.me != ch.sites[-1]:
        return occupied, []
    return occupied, await offload(_equal, [*await tokens.gather_mixed(ch, bound), sent])


def _equal(sets: Sequence[bytes]) -> list[Class]:
    """Equal tokens of two sites or more are a class; classes are numbered in the order of the tokens."""
    places: dict[bytes, dict[int, int]] = {}
    for site, raw in enumerate(sets):
        for place, token in enumerate(tokens.pieces(raw, tokens.SHORT_BYTES)):
            places.setdefault(token, {})[site] = place
    shared = sorted(token for token, holders in places.items() if len(holders) > 1)
    return list(enumerate(places[token] for token in shared))


def _check_work(sites: int, shape: Shape) -> None:
    """Raise where trying all t sites on all cells would take hours."""
    tries = math.comb(sites, shape.threshold) * shape.threshold * shape.cells
    if tries > _MOST_WORK or shape.size_bytes > _MOST_BYTES:
        raise TooManyCategories(
            f"Trying every {shape.threshold} of {sites} sites on {shape.items:,} values takes {tries:.1g} steps.",
            "Take fewer columns in a step, fewer sites, or another threshold.",
        )


async def _own_shares(ch: Channel, items: Sequence[bytes], bound: int) -> tuple[list[bytes], NDArray[np.uint64]]:
    """The reconstructor's places and shares with t > 2, by way of the coordinator."""
    inverses = await tokens.send_blinded(ch, ch.sites[0], items, bound)

    def unblinding() -> wire.Unblinding:
        dummies = (oprf.gen_blind() for _ in range(bound - len(inverses)))
        return wire.Unblinding(scalars=b"".join([*inverses, *dummies]))

    await ch.send(COORDINATOR, wire.Unblinding, partial(offload, unblinding))
    sent = await ch.recv(wire.OwnShares, COORDINATOR)
    places = tokens.split_points(ch, COORDINATOR, sent.places, bound)[: len(items)]
    shares = _shares(ch, "the coordinator", sent.shares, bound * overthreshold.TABLES)
    return places, shares.reshape(bound, overthreshold.TABLES, overthreshold.LANES)[: len(items)]


async def _make_last_shares(ch: Channel, bound: int, threshold: int) -> None:
    """The coordinator's part with t > 2: makes the reconstructor's shares from what says nothing to it."""
    keyholder, reconstructor = ch.sites[0], ch.sites[-1]
    evaluated = (await ch.recv(wire.EvaluatedItems, keyholder)).points
    inverses = (await ch.recv(wire.Unblinding, reconstructor)).scalars
    scalars = tokens.split_points(ch, reconstructor, inverses, bound)

    def shares() -> wire.OwnShares:
        found = tokens.finalize(ch, keyholder, scalars, evaluated, bound)
        made = overthreshold.gen_shares(found, len(ch.sites), threshold)
        places = b"".join(map(overthreshold.place_key, found))
        return wire.OwnShares(places=places, shares=overthreshold.to_bytes(made))

    await ch.send(reconstructor, wire.OwnShares, partial(offload, shares))


def _shares(ch: Channel, sender: str, raw: bytes, rows: int) -> NDArray[np.uint64]:
    try:
        return overthreshold.from_bytes(raw, rows)
    except ValueError as error:
        raise BadMessage(f"{sender} sent shares in {ch.run} that cannot be: {error}.") from None


def _hits(found: Sequence[Class], places: int, sites: int) -> list[wire.Hits]:
    """For each site class and members of its every place, hit or not: the length says nothing."""
    told = []
    for site in range(sites):
        classes = np.full(places, NO_CLASS, dtype="<u4")
        bits = np.zeros((places, sites), dtype=np.uint8)
        for number, holders in found:
            if site in holders:
                classes[holders[site]] = number
                # The first holder needs to know all; the others, who it is.
                first = min(holders)
                bits[holders[site], list(holders) if site == first else [site, first]] = 1
        told.append(wire.Hits(classes=classes.tobytes(), members=np.packbits(bits, axis=1).tobytes()))
    return told


def _members(ch: Channel, hits: wire.Hits, occupied: NDArray[np.int64], items: int) -> list[dict[int, frozenset[int]]]:
    """For each of my items its classes and their members; dummies are no items."""
    sites, width = len(ch.sites), (len(ch.sites) + 7) // 8
    if len(hits.classes) != 4 * len(occupied) or len(hits.members) != width * len(occupied):
        raise BadMessage(f"{ch.sites[-1]} sent Hits of another size in {ch.run} than there are places.")
    classes = np.frombuffer(hits.classes, "<u4")
    bits = np.unpackbits(np.frombuffer(hits.members, np.uint8).reshape(-1, width), axis=1, count=sites)
    found: list[dict[int, frozenset[int]]] = [{} for _ in range(items)]
    for place in np.flatnonzero((classes != NO_CLASS) & (occupied != EMPTY)).tolist():
        found[occupied[place]][int(classes[place])] = frozenset(np.flatnonzero(bits[place]).tolist())
    return found


async def _exchange(
    ch: Channel, mine: Identifiers, found: Sequence[Mapping[int, frozenset[int]]], bound: int
) -> Identifiers:
    """Step 4: each holder takes the identifier of the first."""
    me = ch.sites.index(ch.me)
    earlier, later = ch.sites[:me], range(me + 1, len(ch.sites))
    entries: dict[int, list[tuple[int, int]]] = {site: [] for site in later}
    for classes, identifier in zip(found, mine.tolist(), strict=True):
        group = frozenset[int]().union(*classes.values())
        if group and min(group) == me:
            for site in group - {me}:
                common = next(number for number, both in classes.items() if site in both)
                entries[site].append((common, identifier))
    messages = {ch.sites[site]: partial(_identifiers, pairs, bound) for site, pairs in entries.items()}
    await ch.scatter(wire.ClassIdentifiers, messages)
    adopted = mine.copy()
    of_class = {number: item for item, classes in enumerate(found) for number in classes}
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
    return [(number, identifier) for number, identifier in rows.tolist() if number != NO_CLASS]
