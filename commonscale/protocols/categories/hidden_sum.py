"""Sums that the sites learn and the coordinator, who adds them, does not.

1. Each site adds pairwise masks to its vector, as in secure_sum and count_sum; the first site of the ring also adds a
   mask from the group key. It sends the result.
2. The coordinator adds up: the pairwise masks cancel, the group's mask stays. It sends the sum to all.
3. Each site takes the group's mask away.

Counts are modulo 2^64; a private OR is a sum of random numbers where a site says yes. Vectors are modulo 2^256; wide
integers are modulo a power of two that is public.

A coordinator that adds something of its own to a sum could see from what the sites say next whether it made a
difference. So counts carry 64 checks: for weights that only the sites know, the weighted sums of a site's counts are
added up like counts, and must be the weighted sums of the totals. A change anywhere passes one of them with probability
1/2 or less, all of them with 2^-64. After the other two the sites say nothing that depends on the sum.

Callers agree on what they were shown (layout).

Reveals: the sums, to all sites; nothing to the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from google.protobuf.message import Message

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, Disagreement
from commonscale.protocols.private_or import vector64
from commonscale.slot import HUB
from commonscale.v1.protocols_pb2 import (
    Counts,
    HiddenCounts,
    HiddenIntegers,
    HiddenVector,
    MaskedCounts,
    MaskedIntegers,
    MaskedVector,
    Vector,
)
from crypto import masks, ring
from crypto.masks import Integers

CHECKS = 64


def _mask_keys(ch: Channel, group_key: bytes, kind: type[Message]) -> tuple[dict[str, bytes], bytes]:
    """Keys of my pairwise masks, with the group's mask as one more pair where I add it; and their context."""
    assert ch.envelope is not None
    keys = ch.envelope.pair_keys()
    if ch.me == ch.parties[0]:
        # Above every name, so that it is added, never subtracted.
        keys["~"] = group_key
    return keys, ch.slot(kind, "", HUB).context()


async def party_counts(ch: Channel, group_key: bytes, length: int, make: Callable[[], Integers]) -> Integers:
    """A site's role: sums of counts modulo 2^64."""
    keys, context = _mask_keys(ch, group_key, MaskedCounts)

    def masked() -> MaskedCounts:
        counts = make()
        checked = np.concatenate([counts, masks.checks64(counts, group_key, context, CHECKS)])
        return MaskedCounts(counts=Counts(elements=masks.apply64(checked, ch.me, keys, context).tobytes()))

    await ch.send(HUB, MaskedCounts, partial(offload, masked))  # 1.
    told = vector64(ch, "the coordinator", await ch.recv_broadcast(HiddenCounts), length + CHECKS)  # 2.

    def opened() -> Integers:  # 3.
        total = masks.remove64(told, group_key, context)
        if (masks.checks64(total[:length], group_key, context, CHECKS) != total[length:]).any():
            raise Disagreement(
                f"The sum in {ch.prefix}HiddenCounts of {ch.run} is not that of what the sites sent.",
                "The coordinator is faulty or dishonest, or a site sent a damaged message.",
            )
        return total[:length]

    return await offload(opened)


async def coordinator_counts(ch: Channel, length: int) -> None:
    """The coordinator's role."""
    received = await ch.gather(MaskedCounts)
    vectors = [vector64(ch, site, message, length + CHECKS) for site, message in received.items()]
    total: Integers = np.sum(vectors, axis=0, dtype=np.uint64)
    await ch.broadcast(HiddenCounts(counts=Counts(elements=total.astype("<u8", copy=False).tobytes())))


async def party_vector(ch: Channel, group_key: bytes, length: int, make: Callable[[], ring.Vector]) -> ring.Vector:
    """A site's role: sums of vectors modulo 2^256."""
    keys, context = _mask_keys(ch, group_key, MaskedVector)

    def masked() -> MaskedVector:
        return MaskedVector(vector=Vector(elements=ring.to_bytes(masks.apply(make(), ch.me, keys, context))))

    await ch.send(HUB, MaskedVector, partial(offload, masked))
    told = _vector(ch, "the coordinator", (await ch.recv_broadcast(HiddenVector)).vector, length)
    return ring.subtract(told, masks.expand(group_key, context, length))


async def coordinator_vector(ch: Channel, length: int) -> None:
    """The coordinator's role."""
    received = await ch.gather(MaskedVector)
    total = ring.add_all([_vector(ch, site, message.vector, length) for site, message in received.items()])
    await ch.broadcast(HiddenVector(vector=Vector(elements=ring.to_bytes(total))))


def _vector(ch: Channel, sender: str, message: Vector, length: int) -> ring.Vector:
    if len(message.elements) != length * ring.ELEMENT_BYTES:
        raise BadMessage(f"{sender} sent a vector of {len(message.elements)} bytes in {ch.prefix} of {ch.run}.")
    return ring.from_bytes(message.elements)


async def party_integers(ch: Channel, group_key: bytes, width: int, length: int, values: Sequence[int]) -> list[int]:
    """A site's role: sums of integers of at most `width` bytes; values and their sums are not negative."""
    keys, context = _mask_keys(ch, group_key, MaskedIntegers)

    def masked() -> MaskedIntegers:
        return MaskedIntegers(elements=masks.apply_wide(values, width, ch.me, keys, context))

    await ch.send(HUB, MaskedIntegers, partial(offload, masked))
    told = (await ch.recv_broadcast(HiddenIntegers)).elements
    _check_width(ch, "the coordinator", told, width * length)
    return masks.remove_wide(told, width, group_key, context)


async def coordinator_integers(ch: Channel, width: int, length: int) -> None:
    """The coordinator's role."""
    received = await ch.gather(MaskedIntegers)
    for site, message in received.items():
        _check_width(ch, site, message.elements, width * length)
    total = masks.add_wide([message.elements for message in received.values()], width)
    await ch.broadcast(HiddenIntegers(elements=total))


def _check_width(ch: Channel, sender: str, elements: bytes, expected: int) -> None:
    if len(elements) != expected:
        raise BadMessage(f"{sender} sent {len(elements)} bytes of integers in {ch.prefix} of {ch.run}, not {expected}.")
