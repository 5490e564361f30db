"""Agreement on a joint value: every site signs the hash of what it was shown, and checks everyone's.

Not in the papers: it is what lets the other protocols run over a coordinator that is not trusted to say
the same to everyone. A coordinator that shows two sites different values is caught before either uses them.

1. Each site sends SHA-256(value), signed for this run and slot, to the coordinator.
2. The coordinator sends all of them to all sites.
3. Each site checks every signature against its own hash.

Reveals: nothing beyond the hash of a value that all sites hold already.
"""

import hashlib
from collections.abc import Sequence

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.errors import Disagreement
from commonscale.v1.protocols_pb2 import Confirmation, Confirmations


async def agree(ch: Channel, value: bytes) -> None:
    """All roles: returns at a site only if every site holds `value`; the coordinator's own is not looked at."""
    if ch.is_coordinator:
        gathered = await ch.gather(Confirmation)
        await ch.broadcast(Confirmations(confirmations=gathered.values()))  # 2.
        return
    await ch.send(COORDINATOR, Confirmation, lambda: confirm(ch, value))  # 1.
    verify(ch, (await ch.recv_broadcast(Confirmations)).confirmations, value)  # 3.


def confirm(ch: Channel, value: bytes) -> Confirmation:
    """Step 1: my signed hash of a value."""
    assert ch.envelope is not None
    digest = hashlib.sha256(value).digest()
    return Confirmation(digest=digest, signature=ch.envelope.sign(ch.slot(Confirmation, ch.me, COORDINATOR), digest))


def verify(ch: Channel, confirmations: Sequence[Confirmation], value: bytes) -> None:
    """Step 3: raise unless every site has signed the hash of this value."""
    assert ch.envelope is not None
    digest = hashlib.sha256(value).digest()
    mine = ch.slot(Confirmation, ch.me, COORDINATOR)
    if len(confirmations) != len(ch.sites):
        raise Disagreement(f"{len(confirmations)} confirmations for {len(ch.sites)} sites in {mine.kind} of {ch.run}.")
    for site, confirmation in zip(ch.sites, confirmations, strict=True):
        ch.envelope.verify(ch.slot(Confirmation, site, COORDINATOR), confirmation.digest, confirmation.signature)
        if confirmation.digest != digest:
            raise Disagreement(
                f"{site} was shown another value than {ch.me} in {mine.kind} of {ch.run}.",
                "The coordinator is faulty or dishonest; nothing was computed from either value.",
            )
