"""Secure sums: everyone learns the sum of the sites' vectors, nobody learns an addend.

Three ways to add, one interface. Numbers stand in the fixed point of crypto.ring, in which sums are exact.

**masks** (default), pairwise masks:
1. Each site adds to its vector a mask shared with each site after it and subtracts one shared with each
   site before it, and sends the result: uniformly random to anyone who lacks the pair keys.
2. The coordinator adds up what it got: the masks cancel.

**shares**, the secure average computation (SAC) of Wink and Nochta as used in section 6 of "Privacy-
Preserving Tabular Data Transformation in FL":
1. Each site splits its vector into one share a site and sends each, sealed, to its receiver.
2. Each site adds the shares it holds and sends the partial sum.
3. The coordinator adds up the partial sums.

**sac-proportional**: `shares` with the paper's formula 6 for the parts, x · r_i / sum(r).

Floats are spread over their last digit (± half an ulp) when they are encoded: otherwise the digits of the exact total
below the last digit of the largest addend would be those of the smaller sites alone. Counts stay exact.

All end alike: the coordinator sends the total to all sites, and they agree that it is the same everywhere.

Differs from the paper: shares are uniformly random modulo 2^256 instead of proportional (a proportional part
keeps the sign and the zeros of x and correlates with it: 0.87 and more); partial sums are added by the
coordinator and confirmed by all sites, instead of being sent by everyone to everyone.

Reveals: the total, to all sites and the coordinator. sac-proportional also shows every site the signs, the
zeros and the rough size of every other site's numbers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Protocol

import numpy as np

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, Overflow, TooFewSites
from commonscale.protocols import agreement
from commonscale.protocols.admission import MIN_SITES
from commonscale.slot import HUB
from commonscale.v1 import protocols_pb2 as wire
from crypto import masks, ring, shares

# More values than any column can have.
MAX_COUNT = 1 << 62


class SecureSum(Protocol):
    """One way to add."""

    name: str
    warning: str

    async def party(self, ch: Channel, length: int, encode: Callable[[], ring.Vector]) -> ring.Vector:
        """Contribute a vector, encoded at most once; returns the total, the same at all sites."""

    async def coordinator(self, ch: Channel, length: int) -> ring.Vector:
        """Add up what cannot be read; returns the total."""


class Masks:
    """Pairwise masks."""

    name = "masks"
    warning = ""

    async def party(self, ch: Channel, length: int, encode: Callable[[], ring.Vector]) -> ring.Vector:
        """Role of a site."""
        assert ch.envelope is not None
        pair_keys = ch.envelope.pair_keys()
        context = ch.slot(wire.MaskedVector, "", HUB).context()

        async def masked() -> wire.MaskedVector:
            return wire.MaskedVector(vector=_wire(await offload(masks.apply, encode(), ch.me, pair_keys, context)))

        # 1. Send my masked vector: made once for this run and scope.
        await ch.send(HUB, wire.MaskedVector, masked)
        return await _agreed_total(ch, length)

    async def coordinator(self, ch: Channel, length: int) -> ring.Vector:
        """Role of the coordinator."""
        received = await ch.gather(wire.MaskedVector)  # 2.
        return await _open_total(ch, [_vector(ch, site, m, length) for site, m in received.items()])


class Exchange:
    """Additive shares, exchanged between the sites."""

    def __init__(self, name: str, split: Callable[[ring.Vector, int], list[ring.Vector]], warning: str = "") -> None:
        self.name = name
        self.warning = warning
        self._split = split

    async def party(self, ch: Channel, length: int, encode: Callable[[], ring.Vector]) -> ring.Vector:
        """Role of a site."""
        # 1. Split once: all shares are stored together before the first is sent.
        stored = await ch.keep("Shares", lambda: self._split_to_bytes(encode(), len(ch.parties)))
        parts = dict(zip(ch.parties, np.array_split(ring.from_bytes(stored), len(ch.parties)), strict=True))
        others = [party for party in ch.parties if party != ch.me]
        await ch.scatter(wire.Share, {to: partial(_share, parts[to]) for to in others})
        # 2. Add what I hold.
        received = await ch.gather(wire.Share)
        held = [parts[ch.me], *(_vector(ch, site, m, length) for site, m in received.items())]
        await ch.send(HUB, wire.PartialSum, lambda: wire.PartialSum(vector=_wire(ring.add_all(held))))
        return await _agreed_total(ch, length)

    async def coordinator(self, ch: Channel, length: int) -> ring.Vector:
        """Role of the coordinator."""
        received = await ch.gather(wire.PartialSum)  # 3.
        return await _open_total(ch, [_vector(ch, site, m, length) for site, m in received.items()])

    def _split_to_bytes(self, vector: ring.Vector, count: int) -> bytes:
        return b"".join(map(ring.to_bytes, self._split(vector, count)))


async def _open_total(ch: Channel, vectors: Sequence[ring.Vector]) -> ring.Vector:
    """The coordinator's last step, the same for every way to add."""
    total = await offload(ring.add_all, vectors)
    await ch.broadcast(wire.Total(vector=_wire(total)))
    await agreement.coordinator(ch)
    return total


async def _agreed_total(ch: Channel, length: int) -> ring.Vector:
    """A site's last step: the total, once all sites have confirmed that they were shown the same."""
    message = await ch.recv_broadcast(wire.Total)
    total = _vector(ch, HUB, message, length)
    await agreement.party(ch, ring.to_bytes(total))
    return total


def _share(part: ring.Vector) -> wire.Share:
    return wire.Share(vector=_wire(part))


def _wire(vector: ring.Vector) -> wire.Vector:
    return wire.Vector(elements=ring.to_bytes(vector))


class _HasVector(Protocol):
    @property
    def vector(self) -> wire.Vector: ...


def _vector(ch: Channel, sender: str, message: _HasVector, length: int) -> ring.Vector:
    elements = message.vector.elements
    if len(elements) != length * ring.ELEMENT_BYTES:
        raise BadMessage(
            f"{sender} sent {len(elements)} bytes in {ch.prefix}{type(message).__name__} of {ch.run} "
            f"instead of {length * ring.ELEMENT_BYTES}."
        )
    return ring.from_bytes(elements)


WAYS: dict[str, SecureSum] = {
    way.name: way
    for way in (
        Masks(),
        Exchange("shares", shares.split_uniform),
        Exchange(
            "sac-proportional",
            shares.split_proportional,
            "sac-proportional shows every site the signs, the zeros and the rough size of every other site's sums; "
            "use masks or shares unless you compare with the paper.",
        ),
    )
}


async def party(ch: Channel, way: SecureSum, names: Sequence[str], values: Sequence[float]) -> list[Fraction]:
    """Contribute numbers called `names`; returns the sums over all sites. Integers are added exactly."""
    if len(ch.parties) < MIN_SITES:
        raise TooFewSites(f"{len(ch.parties)} sites are too few: a sum needs at least {MIN_SITES}.")

    def encode() -> ring.Vector:
        try:
            return ring.encode(values, addends=len(ch.parties), random_below=secrets.randbelow)
        except ring.FixedPointOverflowError as error:
            raise Overflow(
                f"{ch.me}: the {names[error.index]} is too large to be added securely (over 1e38 in all).",
                "Rescale that column at every site; nothing was sent.",
            ) from None

    return ring.decode(await way.party(ch, len(values), encode))


def check_counts(columns: Sequence[str], counts: Sequence[Fraction]) -> None:
    """Raise unless sums of counts are counts."""
    for column, count in zip(columns, counts, strict=True):
        if count.denominator != 1 or not 0 <= count < MAX_COUNT:
            raise BadMessage(
                f"What the sites sent adds up to no count of column {column!r}.", "A site sent a damaged addend."
            )


async def coordinator(ch: Channel, way: SecureSum, length: int) -> list[Fraction]:
    """Relay and add; returns the exact sums over all sites."""
    return ring.decode(await way.coordinator(ch, length))
