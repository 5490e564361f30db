"""Sums of counts inside a search: everyone learns Σ counts, nobody a site's own.

The ways of secure_sum for integers below 2^63, and one more:

**masks**   pairwise masks modulo 2^64; they depend on everything told before (see private_or).
**shares**  additive shares modulo 2^64, sealed; each names everything told before, and others are refused.
**ckks**    encrypted to the collective key, added by the coordinator, opened by all; before a site helps to open, it
            checks every site's signed word on everything told before.

In all three the sites need not agree before the next question; callers agree once, at the end of the search.

Reveals: the sums, to all sites and the coordinator.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, Disagreement
from commonscale.protocols.private_or import vector64
from commonscale.protocols.transcript import Transcript
from commonscale.slot import HUB
from commonscale.v1.protocols_pb2 import Counts, CountShare, MaskedCounts, PartialCounts, TotalCounts
from crypto import masks

Integers = NDArray[np.uint64]
Count = Callable[[], Integers]


class PartySums(Protocol):
    """A site's end of a way to add counts."""

    @property
    def capacity(self) -> int:
        """How many counts one round takes without extra cost."""

    async def add(self, ch: Channel, length: int, count: Count, transcript: Transcript) -> Integers:
        """Contribute my counts, counted at most once; returns the sums."""


class HubSums(Protocol):
    """The coordinator's end."""

    @property
    def capacity(self) -> int:
        """As the sites'."""

    async def add(self, ch: Channel, length: int, transcript: Transcript) -> Integers:
        """Add what cannot be read; returns the sums."""


CAPACITY = (1 << 20) // 8


class PartyMasks:
    """Pairwise masks."""

    capacity = CAPACITY

    async def add(self, ch: Channel, length: int, count: Count, transcript: Transcript) -> Integers:
        """Role of a site."""
        assert ch.envelope is not None
        pair_keys = ch.envelope.pair_keys()
        context = ch.slot(MaskedCounts, "", HUB).context() + transcript.digest

        def masked() -> MaskedCounts:
            return MaskedCounts(counts=_wire(masks.apply64(count(), ch.me, pair_keys, context)))

        await ch.send(HUB, MaskedCounts, partial(offload, masked))
        return await told_total(ch, length, transcript)


class HubMasks:
    """Pairwise masks."""

    capacity = CAPACITY

    async def add(self, ch: Channel, length: int, transcript: Transcript) -> Integers:
        """Role of the coordinator."""
        received = await ch.gather(MaskedCounts)
        return await tell_total(ch, [vector64(ch, site, m, length) for site, m in received.items()], transcript)


class PartyShares:
    """Additive shares, exchanged between the sites."""

    capacity = CAPACITY

    async def add(self, ch: Channel, length: int, count: Count, transcript: Transcript) -> Integers:
        """Role of a site."""
        sites = len(ch.parties)
        # Split once: all shares are stored together before the first is sent.
        stored = await ch.keep("Shares", lambda: _split(count(), sites).tobytes())
        parts = dict(zip(ch.parties, np.frombuffer(stored, "<u8").reshape(sites, length), strict=True))
        told = transcript.digest

        def share(to: str) -> CountShare:
            return CountShare(counts=_wire(parts[to]), transcript=told)

        await ch.scatter(CountShare, {to: partial(share, to) for to in ch.parties if to != ch.me})
        received = await ch.gather(CountShare)
        for site, message in received.items():
            if message.transcript != told:
                raise Disagreement(
                    f"{site} was told other answers than {ch.me} before {ch.prefix}CountShare of {ch.run}.",
                    "The coordinator is faulty or dishonest; nothing was added.",
                )
        theirs = [vector64(ch, site, m, length) for site, m in received.items()]
        held: Integers = np.sum([parts[ch.me], *theirs], axis=0, dtype=np.uint64)
        await ch.send(HUB, PartialCounts, lambda: PartialCounts(counts=_wire(held)))
        return await told_total(ch, length, transcript)


class HubShares:
    """Additive shares, exchanged between the sites."""

    capacity = CAPACITY

    async def add(self, ch: Channel, length: int, transcript: Transcript) -> Integers:
        """Role of the coordinator."""
        received = await ch.gather(PartialCounts)
        return await tell_total(ch, [vector64(ch, site, m, length) for site, m in received.items()], transcript)


async def tell_total(ch: Channel, parts: list[Integers], transcript: Transcript) -> Integers:
    """Add up, and tell all sites."""
    total: Integers = np.sum(parts, axis=0, dtype=np.uint64)
    _check_counts(ch, total)
    raw = _wire(total)
    await ch.broadcast(TotalCounts(counts=raw))
    transcript.add(raw.elements)
    return total


async def told_total(ch: Channel, length: int, transcript: Transcript) -> Integers:
    """What the coordinator told all sites."""
    message = await ch.recv_broadcast(TotalCounts)
    total = vector64(ch, "the coordinator", message, length)
    transcript.add(message.counts.elements)
    _check_counts(ch, total)
    return total


def _check_counts(ch: Channel, total: Integers) -> None:
    if (total >> np.uint64(63)).any():
        raise BadMessage(f"The sums in {ch.prefix}TotalCounts of {ch.run} are no counts: masks did not cancel.")


def _split(vector: Integers, count: int) -> Integers:
    """Count - 1 uniformly random rows, and the difference."""
    parts = np.frombuffer(secrets.token_bytes(8 * len(vector) * (count - 1)), "<u8").reshape(count - 1, -1)
    return np.vstack([parts, vector - parts.sum(axis=0, dtype=np.uint64)]).astype("<u8")


def _wire(vector: Integers) -> Counts:
    return Counts(elements=vector.astype("<u8", copy=False).tobytes())
