"""The two ways of over-threshold intersection (see threshold) to find which sites hold the same value.

Tables of shares for any t, and for t = 2 tokens that are sorted and merged. A way sends what a site has to the
reconstructor, says which of the site's items stands in which place, and at the reconstructor finds the hits and tells
each site its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial

import numpy as np
from numpy.typing import NDArray

from commonscale.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage
from commonscale.protocols.categories import matching, tokens
from commonscale.slot import HUB
from commonscale.v1 import protocols_pb2 as wire
from crypto import oprf, overthreshold
from crypto.overthreshold import EMPTY, Hit, Shape

NO_CLASS = 0xFFFF_FFFF


class Tables:
    """Tables of shares."""

    def __init__(self, ch: Channel, items: Sequence[bytes], shape: Shape) -> None:
        self.ch, self.items, self.shape = ch, items, shape
        self._own: NDArray[np.uint64] | None = None
        self._hits: dict[str, wire.Hits] = {}

    async def send_shares(self) -> NDArray[np.int64]:
        """Which of my items stands in each cell."""
        ch, keyholder, reconstructor = self.ch, self.ch.parties[0], self.ch.parties[-1]
        if ch.me == reconstructor:
            places, shares = await self._own_shares(keyholder)
        else:
            found = await self._tokens(keyholder, reconstructor)
            places = list(map(overthreshold.place_key, found))
            x = ch.parties.index(ch.me) + 1
            shares = await offload(overthreshold.gen_shares, found, x, self.shape.threshold)
        occupied = (await offload(overthreshold.occupants, places, self.shape)).ravel()
        if ch.me == reconstructor:
            kept = await ch.keep("OwnTables", lambda: overthreshold.to_bytes(overthreshold.fill(shares, occupied)))
            self._own = overthreshold.from_bytes(kept, self.shape.cells)
            return occupied

        def filled() -> wire.ShareTables:
            return wire.ShareTables(shares=overthreshold.to_bytes(overthreshold.fill(shares, occupied)))

        await ch.send(reconstructor, wire.ShareTables, partial(offload, filled))
        return occupied

    async def _tokens(self, keyholder: str, reconstructor: str) -> list[bytes]:
        ch = self.ch
        if ch.me != keyholder:
            return await tokens.ask(ch, keyholder, self.items, self.shape.items)
        key = await tokens.own_key(ch)
        through = HUB if self.shape.threshold > 2 else reconstructor
        bound = self.shape.items
        await concurrently(
            [
                partial(tokens.answer_all, ch, key, ch.parties[1:-1], bound),
                partial(tokens.answer, ch, key, reconstructor, bound, through),
            ]
        )
        return await offload(oprf.tokens, key, self.items)

    async def _own_shares(self, keyholder: str) -> tuple[list[bytes], NDArray[np.uint64]]:
        """The reconstructor's: by way of the coordinator, unless t = 2 lets it know everything about its own anyway."""
        ch, bound = self.ch, self.shape.items
        if self.shape.threshold == 2:
            found = await tokens.ask(ch, keyholder, self.items, bound)
            made = overthreshold.gen_shares(found, len(ch.parties), 2)
            return list(map(overthreshold.place_key, found)), made
        inverses = await tokens.send_blinded(ch, keyholder, self.items, bound)

        def unblinding() -> wire.Unblinding:
            dummies = (oprf.gen_blind() for _ in range(bound - len(inverses)))
            return wire.Unblinding(scalars=b"".join([*inverses, *dummies]))

        await ch.send(HUB, wire.Unblinding, partial(offload, unblinding))
        told = await ch.recv(wire.OwnShares, HUB)
        places = tokens.split_points(ch, HUB, told.places, bound)[: len(self.items)]
        shares = _shares(ch, "the coordinator", told.shares, bound * overthreshold.TABLES)
        return places, shares.reshape(bound, overthreshold.TABLES, overthreshold.LANES)[: len(self.items)]

    async def reconstruct(self) -> None:
        """Role of the reconstructor."""
        assert self._own is not None
        ch = self.ch
        received = await ch.gather(wire.ShareTables)
        tables = {ch.parties.index(s): _shares(ch, s, m.shares, self.shape.cells) for s, m in received.items()}
        tables[len(ch.parties) - 1] = self._own
        hits = await offload(overthreshold.reconstruct, tables, self.shape.threshold)
        self._hits = {
            site: _hits_of(number, hits, self.shape.cells, len(ch.parties)) for number, site in enumerate(ch.parties)
        }
        await _tell(ch, self._hits)

    def own_hits(self) -> wire.Hits:
        """What the reconstructor would tell itself."""
        return self._hits[self.ch.me]


class Tokens:
    """t = 2: tokens, sorted and merged."""

    def __init__(self, ch: Channel, items: Sequence[bytes], bound: int) -> None:
        self.ch, self.items, self.bound = ch, items, bound
        self._own: list[bytes] = []
        self._hits: dict[str, wire.Hits] = {}

    async def send_shares(self) -> NDArray[np.int64]:
        """Which of my items stands in each place of my ordered tokens."""
        ch, keyholder, reconstructor = self.ch, self.ch.parties[0], self.ch.parties[-1]
        if ch.me == keyholder:
            key = await tokens.own_key(ch)
            found = await offload(oprf.tokens, key, self.items)
            await tokens.answer_all(ch, key, ch.parties[1:], self.bound)
        else:
            found = await tokens.ask(ch, keyholder, self.items, self.bound)
        short = [token[: matching.TOKEN_BYTES] for token in found]
        mixed = await ch.keep("Mixed", lambda: matching.mixed([len(short)], short, [self.bound]))
        if ch.me != reconstructor:
            await ch.send(reconstructor, wire.Tokens, lambda: wire.Tokens(tokens=mixed))
        self._own = matching.pieces(mixed)
        occupied = np.full(self.bound, EMPTY, dtype=np.int64)
        occupied[matching.places(ch, mixed, short)] = np.arange(len(short))
        return occupied

    async def reconstruct(self) -> None:
        """Role of the reconstructor."""
        ch, size = self.ch, self.bound * matching.TOKEN_BYTES
        received = await ch.gather(wire.Tokens)
        for site, message in received.items():
            if len(message.tokens) != size:
                raise BadMessage(f"{site} sent {len(message.tokens)} bytes of tokens in {ch.run} instead of {size}.")
        sets = {site: matching.pieces(message.tokens) for site, message in received.items()} | {ch.me: self._own}
        self._hits = await offload(_merge, ch.parties, sets)
        await _tell(ch, self._hits)

    def own_hits(self) -> wire.Hits:
        """What the reconstructor would tell itself."""
        return self._hits[self.ch.me]


def _merge(parties: Sequence[str], sets: Mapping[str, Sequence[bytes]]) -> dict[str, wire.Hits]:
    """Equal tokens of two sites or more are a class; classes are numbered in the order of the tokens."""
    holders: dict[bytes, set[int]] = {}
    for number, site in enumerate(parties):
        for token in sets[site]:
            holders.setdefault(token, set()).add(number)
    shared = {token: at for at, token in enumerate(sorted(t for t, sites in holders.items() if len(sites) > 1))}
    found = {}
    for site in parties:
        me = parties.index(site)
        hits = {
            at: (shared[token], _told(me, holders[token])) for at, token in enumerate(sets[site]) if token in shared
        }
        found[site] = _hits(hits, len(sets[site]), len(parties))
    return found


def _hits_of(site: int, hits: Sequence[Hit], cells: int, sites: int) -> wire.Hits:
    """A site's view of the hits: a cell is its own class, and a site is in at most one hit a cell."""
    mine = (hit for hit in hits if site in hit.members)
    return _hits({hit.cell: (hit.cell, _told(site, hit.members)) for hit in mine}, cells, sites)


def _told(site: int, members: Set[int]) -> Set[int]:
    """The first holder needs to know all; the others, who it is."""
    first = min(members)
    return members if site == first else {site, first}


def _hits(hits: Mapping[int, tuple[int, Set[int]]], places: int, sites: int) -> wire.Hits:
    """Class and members for every place, hit or not: the length says nothing."""
    classes = np.full(places, NO_CLASS, dtype="<u4")
    bits = np.zeros((places, sites), dtype=np.uint8)
    for place, (number, members) in hits.items():
        classes[place] = number
        bits[place, list(members)] = 1
    return wire.Hits(classes=classes.tobytes(), members=np.packbits(bits, axis=1).tobytes())


async def _tell(ch: Channel, hits: Mapping[str, wire.Hits]) -> None:
    others = {site: found for site, found in hits.items() if site != ch.me}
    await ch.scatter(wire.Hits, {site: partial(_itself, found) for site, found in others.items()})


def _itself(message: wire.Hits) -> wire.Hits:
    return message


def _shares(ch: Channel, sender: str, raw: bytes, rows: int) -> NDArray[np.uint64]:
    try:
        return overthreshold.from_bytes(raw, rows)
    except ValueError as error:
        raise BadMessage(f"{sender} sent shares in {ch.run} that cannot be: {error}.") from None
