"""Agreement on a joint value: every site signs the hash of what it was shown, and checks everyone's.

Not in the papers: it is what lets the other protocols run over a coordinator that is not trusted to say
the same to everyone. A coordinator that shows two sites different values is caught before either uses them.

1. Each site sends SHA-256(value), signed for this run and slot, to the coordinator.
2. The coordinator sends all of them to all sites.
3. Each site checks every signature against its own hash.

Reveals: nothing beyond the hash of a value that all parties hold already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from commonscale.channel import Channel
from commonscale.errors import Disagreement
from commonscale.slot import HUB
from commonscale.v1.protocols_pb2 import Confirmation, Confirmations


def confirm(ch: Channel, value: bytes) -> Confirmation:
    """Step 1: my signed hash of a value."""
    assert ch.envelope is not None
    digest = hashlib.sha256(value).digest()
    return Confirmation(digest=digest, signature=ch.envelope.sign(ch.slot(Confirmation, ch.me, HUB), digest))


def verify(ch: Channel, confirmations: Sequence[Confirmation], value: bytes) -> None:
    """Step 3: raise unless every site has signed the hash of this value."""
    assert ch.envelope is not None
    digest = hashlib.sha256(value).digest()
    mine = ch.slot(Confirmation, ch.me, HUB)
    if len(confirmations) != len(ch.parties):
        raise Disagreement(
            f"{len(confirmations)} confirmations for {len(ch.parties)} sites in {mine.kind} of {ch.run}."
        )
    for site, confirmation in zip(ch.parties, confirmations, strict=True):
        ch.envelope.verify(ch.slot(Confirmation, site, HUB), confirmation.digest, confirmation.signature)
        if confirmation.digest != digest:
            raise Disagreement(
                f"{site} was shown another value than {ch.me} in {mine.kind} of {ch.run}.",
                "The coordinator is faulty or dishonest; nothing was computed from either value.",
            )


async def party(ch: Channel, value: bytes) -> None:
    """Role of a site: returns only if every site holds `value`."""
    await ch.send(HUB, Confirmation, lambda: confirm(ch, value))  # 1.
    verify(ch, (await ch.recv_broadcast(Confirmations)).confirmations, value)  # 2. and 3.


async def coordinator(ch: Channel) -> None:
    """Role of the coordinator: passes the confirmations on."""
    gathered = await ch.gather(Confirmation)
    await ch.broadcast(Confirmations(confirmations=gathered.values()))
