"""Private OR: for each of many questions, whether any site says yes. Not which, and not how many.

1. For each question a site puts in a uniformly random number modulo 2^64 if its answer is yes, 0 if it is no, adds
   pairwise masks, and sends the result.
2. The coordinator adds up: the masks cancel; 0 means that nobody said yes, anything else is uniform.
3. It sends the answers, one bit each, to all.

The masks depend on everything that was told before. Sites that were told different things would be asked different
questions; their masks then do not cancel, and the coordinator sees noise. So no round of agreement is needed before
the next question; callers agree once, at the end.

Reveals: the OR of each question, to all sites and the coordinator. (A yes is missed with probability 2^-64.)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.errors import BadMessage
from commonscale.protocols.transcript import Transcript
from commonscale.slot import HUB
from commonscale.v1.protocols_pb2 import Answers, Counts, MaskedCounts
from crypto import masks

Yes = NDArray[np.bool_]


async def party(ch: Channel, length: int, answer: Callable[[], Yes], transcript: Transcript) -> Yes:
    """Role of a site: `answer` says yes or no to each question."""
    assert ch.envelope is not None
    pair_keys = ch.envelope.pair_keys()
    context = ch.slot(MaskedCounts, "", HUB).context() + transcript.digest

    def masked() -> MaskedCounts:
        noise = np.frombuffer(secrets.token_bytes(8 * length), "<u8")
        vector = np.where(answer(), noise, np.uint64(0))
        return MaskedCounts(counts=Counts(elements=masks.apply64(vector, ch.me, pair_keys, context).tobytes()))

    async def make() -> MaskedCounts:
        return await offload(masked)

    await ch.send(HUB, MaskedCounts, make)  # 1.
    told = await ch.recv_broadcast(Answers)  # 3.
    return _unpack(ch, told.bits, length, transcript)


async def coordinator(ch: Channel, length: int, transcript: Transcript) -> Yes:
    """Role of the coordinator."""
    received = await ch.gather(MaskedCounts)
    total = np.zeros(length, dtype=np.uint64)
    for site, message in received.items():  # 2.
        total += vector64(ch, site, message, length)
    bits = np.packbits(total != 0).tobytes()
    await ch.broadcast(Answers(bits=bits))  # 3.
    return _unpack(ch, bits, length, transcript)


def _unpack(ch: Channel, bits: bytes, length: int, transcript: Transcript) -> Yes:
    if len(bits) != (length + 7) // 8:
        raise BadMessage(f"The coordinator sent {len(bits)} bytes in {ch.prefix}Answers of {ch.run}.")
    transcript.add(bits)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=length).astype(bool)


def vector64(ch: Channel, sender: str, message: object, length: int) -> NDArray[np.uint64]:
    """The integers modulo 2^64 in a message, or BadMessage naming the sender."""
    elements: bytes = message.counts.elements  # type: ignore[attr-defined]
    if len(elements) != 8 * length:
        raise BadMessage(
            f"{sender} sent {len(elements)} bytes in {ch.prefix}{type(message).__name__} of {ch.run} "
            f"instead of {8 * length}."
        )
    return np.frombuffer(elements, "<u8").astype(np.uint64)
