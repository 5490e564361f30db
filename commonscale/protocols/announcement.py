"""Announcement: every site shows a vector of its own to everyone. For what its policy lets be seen, and nothing else.

1. Each site signs its vector for this slot and everything announced before, and sends it to the coordinator.
2. The coordinator sends all of them to all sites.
3. Each site checks every signature: the coordinator can leave a site's vector out of nothing, and alter none.

Not in the papers, whose server is trusted to say what it got.

Reveals: the vectors, each with its owner's name, to everyone.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.channel.transcript import Transcript
from commonscale.concurrency import offload
from commonscale.errors import BadMessage
from commonscale.protocols.admission import check_count
from commonscale.v1.protocols_pb2 import Plain, Plains

Floats = NDArray[np.float64]


async def announce(ch: Channel, length: int, mine: Callable[[], Floats], transcript: Transcript) -> Floats:
    """All roles: one row per site, in ring order."""
    if ch.is_coordinator:
        gathered = await ch.gather(Plain)
        said = Plains(vectors=gathered.values())
        await ch.broadcast(said)  # 2.
    else:
        check_count(len(ch.sites))
        announced = transcript.digest
        if ch.is_site:
            await ch.send(COORDINATOR, Plain, partial(offload, partial(_signed, ch, mine, announced)))  # 1.
        said = await ch.recv_broadcast(Plains)
        await offload(_verify, ch, said, announced)  # 3.
    transcript.add(said.SerializeToString(deterministic=True))
    return np.stack(_parsed(ch, said, length))


def _signed(ch: Channel, mine: Callable[[], Floats], announced: bytes) -> Plain:
    assert ch.envelope is not None
    elements = mine().astype("<f8").tobytes()
    signature = ch.envelope.sign(ch.slot(Plain, ch.me, COORDINATOR), announced + elements)
    return Plain(elements=elements, signature=signature)


def _verify(ch: Channel, said: Plains, announced: bytes) -> None:
    assert ch.envelope is not None
    if len(said.vectors) != len(ch.sites):
        raise BadMessage(f"{len(said.vectors)} vectors of {len(ch.sites)} sites in {ch.prefix}Plains of {ch.run}.")
    for site, vector in zip(ch.sites, said.vectors, strict=True):
        ch.envelope.verify(ch.slot(Plain, site, COORDINATOR), announced + vector.elements, vector.signature)


def _parsed(ch: Channel, said: Plains, length: int) -> list[Floats]:
    found = []
    for site, vector in zip(ch.sites, said.vectors, strict=True):
        if len(vector.elements) != 8 * length:
            raise BadMessage(f"{site} sent a {ch.prefix}Plain of another length than {length} in {ch.run}.")
        numbers = np.frombuffer(vector.elements, "<f8").astype(np.float64)
        if not np.isfinite(numbers).all():
            raise BadMessage(f"{site} sent numbers that are not finite in {ch.prefix}Plain of {ch.run}.")
        found.append(numbers)
    return found
