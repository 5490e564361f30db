"""Sums: everyone learns the sum of the sites' vectors, nobody learns an addend. One interface for every way to add.

A vector stands in a ring (crypto.rings): counts, answers and model vectors modulo the prime 2^61 - 1, exact fixed point
modulo 2^256, integers of any size modulo a public power of two.

Method **masks** (the default), pairwise masks:
1. Each site adds to its vector a mask shared with each site after it, subtracts one shared with each site before it,
   and sends the result: uniformly random to anyone who lacks the pair keys.
2. The coordinator adds up what it got: the masks cancel. It sends the total to all.

Method **shares**, the secure average computation (SAC) of Wink and Nochta as used in section 6 of "Privacy-Preserving
Tabular Data Transformation in FL":
1. Each site splits its vector into one share per site and sends each, sealed, to its receiver; each site adds the
   shares it holds and sends the partial sum.
2. The coordinator adds up the partial sums and sends the total to all.

Method **sac-proportional**: `shares` with the paper's formula 6 for the parts, x · r_i / sum(r).

**Hidden sums** (`add_hidden`) are for the sites alone: the first site also adds a mask from a key that only the sites
hold, and every site takes it away from the announced total. A coordinator that adds something of its own could see
from what the sites say next whether it made a difference; so hidden sums modulo the prime carry one random linear
combination with weights from that key, which a changed total passes with probability 2^-60. After hidden sums in the
other rings the sites say nothing that depends on them.

**Private OR** (`any_says`): for each question a site puts in a uniformly random element if its answer is yes, 0 if it
is no. A total of 0 means that nobody said yes, anything else is uniform. (A yes is missed with probability 2^-61.)

Every sum is bound to the transcript, everything that was announced before in this run: masks depend on it, shares name
it. Sites that were shown different totals would be asked different questions; their masks then do not cancel, and the
coordinator sees noise. So the sites agree once, at the end of the run, before anything is used outside it.

Differs from the paper: shares are uniformly random instead of proportional (a proportional part keeps the sign and the
zeros of x and correlates with it: 0.87 and more); partial sums are added by the coordinator instead of being sent by
everyone to everyone.

Reveals: the total, to all sites and the coordinator, or to the sites alone. sac-proportional also shows every site the
signs, the zeros and the rough size of every other site's numbers.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.channel.transcript import Transcript
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, Disagreement
from commonscale.protocols.admission import check_count
from commonscale.reveal import Reveal
from commonscale.v1 import protocols_pb2 as wire
from crypto import checks, masks, shares
from crypto.rings import FIELD61, BadElementsError, Ring, Vector

Yes = NDArray[np.bool_]
# A site's own vector: called at a site only, at most once, in a thread.
Mine = Callable[[], Vector]
# Names of the sites whose vector did not come.
Missing = Callable[[], Awaitable[tuple[str, ...]]]
Contribute = Callable[[Channel, Ring, int, Mine, bytes], Awaitable[None]]


@dataclass(frozen=True)
class Method:
    """One way to add: what a site does before the coordinator adds, and which message it ends with."""

    contribute: Contribute
    sends: type[Message]
    # What it shows beside the total, if anything.
    also: Reveal | None = None


async def add(
    ch: Channel, ring: Ring, length: int, mine: Mine, transcript: Transcript, method: str = "masks"
) -> Vector:
    """All roles: the sum of the sites' vectors."""
    way = METHODS[method]
    if way.also is not None:
        ch.under(way.also).opens()
    if ch.is_coordinator:
        total = await _added(ch, ring, length, way.sends)  # 2.
        raw = ring.to_bytes(total)
        await ch.broadcast(wire.Total(elements=raw))
    else:
        check_count(len(ch.sites))
        if ch.is_site:
            await way.contribute(ch, ring, length, mine, transcript.digest)  # 1.
        raw = (await ch.recv_broadcast(wire.Total)).elements
        total = parse(ch, COORDINATOR, wire.Total, raw, ring, length)
    transcript.add(raw)
    return total


async def add_hidden(
    ch: Channel, ring: Ring, length: int, mine: Mine, transcript: Transcript, key: bytes, missing: Missing | None = None
) -> Vector | tuple[str, ...] | None:
    """All roles: the sum, at the sites; nothing at the coordinator, who adds it. `key` is the sites' own.

    With a function that finds out who is missing: if anybody is, their names instead of a sum.
    """
    carried = length + (ring is FIELD61)
    if ch.is_coordinator:
        if missing and (names := await missing()):
            return names
        total = await _added(ch, ring, carried, wire.MaskedVector)
        raw = ring.to_bytes(total)
        await ch.broadcast(wire.HiddenTotal(elements=raw))
        transcript.add(raw)
        return None
    check_count(len(ch.sites))
    context = _context(ch, transcript.digest)

    def with_check() -> Vector:
        vector = mine()
        if ring is not FIELD61:
            return vector
        return np.concatenate([vector, checks.linear(vector, key, context)])

    if ch.is_site:
        await _send_masked(ch, ring, carried, with_check, transcript.digest, hidden_by=key)
    if missing and (names := await missing()):
        return names
    raw = (await ch.recv_broadcast(wire.HiddenTotal)).elements
    announced = parse(ch, COORDINATOR, wire.HiddenTotal, raw, ring, carried)
    transcript.add(raw)

    def opened() -> Vector:
        total = masks.remove(ring, announced, key, context)
        if ring is FIELD61 and (checks.linear(total[:length], key, context) != total[length:]).any():
            raise Disagreement(
                f"The sum in {ch.prefix}HiddenTotal of {ch.run} is not that of what the sites sent.",
                "The coordinator is faulty or dishonest, or a site sent a damaged message.",
            )
        return total[:length]

    return await offload(opened)


async def any_says(ch: Channel, length: int, mine: Callable[[], Yes], transcript: Transcript) -> Yes:
    """All roles: for each question, whether any site says yes; not which, and not how many."""
    if ch.is_coordinator:
        total = await _added(ch, FIELD61, length, wire.MaskedVector)
        bits = np.packbits(total != 0).tobytes()
        await ch.broadcast(wire.Answers(bits=bits))
    else:
        check_count(len(ch.sites))

        def noise_for_yes() -> Vector:
            return np.where(mine(), FIELD61.random(length), np.uint64(0))

        await _send_masked(ch, FIELD61, length, noise_for_yes, transcript.digest)
        bits = (await ch.recv_broadcast(wire.Answers)).bits
        if len(bits) != (length + 7) // 8:
            raise BadMessage(f"The coordinator sent {len(bits)} bytes in {ch.prefix}Answers of {ch.run}.")
    transcript.add(bits)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=length).astype(bool)


async def _send_masked(
    ch: Channel, ring: Ring, length: int, mine: Mine, announced: bytes, hidden_by: bytes | None = None
) -> None:
    """Step 1 of masks; of a hidden sum, the first site adds one more mask."""
    assert ch.envelope is not None
    keys = ch.envelope.pair_keys(ch.others)
    if hidden_by is not None and ch.me == ch.sites[0]:
        # Above every name, so that it is added, never subtracted.
        keys["~"] = hidden_by
    context = _context(ch, announced)

    def masked() -> wire.MaskedVector:
        vector = masks.apply(ring, mine(), ch.me, keys, context)
        assert len(vector) == length
        return wire.MaskedVector(elements=ring.to_bytes(vector))

    await ch.send(COORDINATOR, wire.MaskedVector, partial(offload, masked))


async def _exchange_shares(
    split: Callable[[Ring, Vector, int], list[Vector]],
    ch: Channel,
    ring: Ring,
    length: int,
    mine: Mine,
    announced: bytes,
) -> None:
    """Step 1 of shares. Split once: all shares are stored together before the first is sent."""
    count = len(ch.sites)
    stored = await ch.keep("Shares", lambda: b"".join(map(ring.to_bytes, split(ring, mine(), count))))
    size = len(stored) // count
    parts = {site: stored[at * size : (at + 1) * size] for at, site in enumerate(ch.sites)}

    def share(to: str) -> wire.Share:
        return wire.Share(elements=parts[to], transcript=announced)

    await ch.scatter(wire.Share, {to: partial(share, to) for to in ch.others})
    received = await ch.gather(wire.Share)
    for site, message in received.items():
        if message.transcript != announced:
            raise Disagreement(
                f"{site} was shown other totals than {ch.me} before {ch.prefix}Share of {ch.run}.",
                "The coordinator is faulty or dishonest; nothing was added.",
            )
    held = [ring.from_bytes(parts[ch.me], length)]
    held += [parse(ch, site, wire.Share, message.elements, ring, length) for site, message in received.items()]
    await ch.send(COORDINATOR, wire.PartialSum, lambda: wire.PartialSum(elements=ring.to_bytes(ring.add_all(held))))


async def _added(ch: Channel, ring: Ring, length: int, kind: type[Message]) -> Vector:
    """The coordinator's step: add what cannot be read."""
    received: dict[str, Any] = await ch.gather(kind)

    def total() -> Vector:
        return ring.add_all([parse(ch, site, kind, m.elements, ring, length) for site, m in received.items()])

    return await offload(total)


def parse(ch: Channel, sender: str, kind: type[Message], raw: bytes, ring: Ring, length: int) -> Vector:
    """A peer's elements, or BadMessage naming the peer and the message."""
    try:
        return ring.from_bytes(raw, length)
    except BadElementsError as error:
        who = "The coordinator" if sender == COORDINATOR else sender
        raise BadMessage(f"{who} sent a bad {ch.prefix}{kind.DESCRIPTOR.name} in {ch.run}: {error}.") from None


def _context(ch: Channel, announced: bytes) -> bytes:
    """What masks are bound to: the slot, and everything announced before."""
    return ch.slot(wire.MaskedVector, "", COORDINATOR).context() + announced


METHODS = {
    "masks": Method(_send_masked, wire.MaskedVector),
    "shares": Method(partial(_exchange_shares, shares.split), wire.PartialSum),
    "sac-proportional": Method(
        partial(_exchange_shares, lambda _, vector, parts: shares.split_proportional(vector, parts)),
        wire.PartialSum,
        Reveal("", "the signs, the zeros and the rough size of every other site's sums", "sites"),
    ),
}
