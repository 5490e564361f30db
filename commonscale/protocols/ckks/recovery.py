"""A site that is lost after key generation: the others open its key share together, and one of them stands in.

Not in the paper; the multiparty schemes call it ShareKeys. Only where the job asks for it:
1. With the keys, each site locks its share under a fresh key K, deposits the locked share with the coordinator, and
   splits K (Shamir) among the other sites, sealed: more than half of them can put it together.
2. When a site is silent for too long in a refresh or a decryption, the coordinator says so: which site, who stands in,
   since which round.
3. The others send their parts of K, sealed, to the stand-in. It opens the share, and from that round on answers for the
   lost site too.

The lost site's inputs are in the computation already; what it had still to put in is missing, and ends the run with
SiteLost. One site may be lost; a second ends the run. A site that was called lost takes no more part in the run.

Reveals: the lost site's key share, to the stand-in: from then on two shares of the collective key are in one hand. The
keys are for this step only.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import anyio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from commonscale.channel.channel import Channel, Mailbox, parse
from commonscale.channel.slot import COORDINATOR, Slot
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, SiteLost
from commonscale.v1.protocols_pb2 import Deposit, Escrow, EscrowPart, Lost
from crypto import shamir
from crypto.ckks.keys import SecretShare

# The key locks one thing once.
_NONCE = bytes(12)


async def deposit(ch: Channel, share: SecretShare | None) -> None:
    """Step 1 at all roles. The coordinator waits for all locked shares; each comes after its parts have arrived."""
    if share is None:
        await ch.gather(Escrow)
        return
    made = Deposit.FromString(await ch.keep("Deposit", lambda: _deposit(share, len(ch.others)).SerializeToString()))
    parts = dict(zip(ch.others, made.parts, strict=True))
    await ch.scatter(EscrowPart, {other: partial(EscrowPart, part=part) for other, part in parts.items()})
    await ch.gather(EscrowPart)
    await ch.send(COORDINATOR, Escrow, lambda: Escrow(locked=made.locked))


async def open_share(keys_ch: Channel, ch: Channel, lost: Lost) -> SecretShare | None:
    """Step 3 at a site: gives its part to the stand-in; the stand-in gets the lost site's share."""
    if lost.site == ch.me:
        raise SiteLost(f"{ch.me} was silent for too long, and the others went on without it.")
    mine = await keys_ch.recv(EscrowPart, lost.site)
    if lost.stand_in != ch.me:
        await ch.send(lost.stand_in, EscrowPart, lambda: mine)
        return None
    helpers = [site for site in ch.others if site != lost.site]
    parts = [mine.part] + [(await ch.recv(EscrowPart, helper)).part for helper in helpers]
    try:
        key = shamir.combine(parts)
        return await offload(SecretShare.from_bytes, AESGCM(key).decrypt(_NONCE, lost.locked, None))
    except (ValueError, InvalidTag):
        raise BadMessage(f"The parts of {lost.site}'s key share do not open it.", "Submit the job again.") from None


@dataclass
class LossAwareMailbox:
    """A site's mailbox while others may get lost: whoever waits here also hears of a loss."""

    inner: Mailbox
    # Where the coordinator says who is lost, and what is done then.
    lost: Slot
    hear: Callable[[Lost], Awaitable[None]]
    _heard: bool = False

    async def put(self, slot: Slot, payload: bytes) -> None:
        """As the inner one."""
        await self.inner.put(slot, payload)

    async def get(self, slot: Slot) -> bytes:
        """What is waited for; a loss that is heard of meanwhile is seen to first."""
        if not self._heard:
            found, payload = await self._either(slot)
            if found == slot:
                return payload
            lost, self._heard = parse(Lost, payload, self.lost), True
            await self.hear(lost)
        return await self.inner.get(slot)

    async def _either(self, slot: Slot) -> tuple[Slot, bytes]:
        found: list[tuple[Slot, bytes]] = []

        async def one(wanted: Slot) -> None:
            payload = await self.inner.get(wanted)
            found.append((wanted, payload))
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, slot)
            tasks.start_soon(one, self.lost)
        return found[0]


def _deposit(share: SecretShare, others: int) -> Deposit:
    key = secrets.token_bytes(shamir.SECRET_BYTES)
    locked = AESGCM(key).encrypt(_NONCE, share.to_bytes(), None)
    return Deposit(locked=locked, parts=shamir.split(key, others, others // 2 + 1))
