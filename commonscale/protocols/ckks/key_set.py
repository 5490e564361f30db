"""A set of collective keys: made together, agreed upon, then used; by one step, or by later jobs of the same sites too.

1. Where keys may be used again: each site names the set that it holds for these sites and these needs; if all name the
   same and the coordinator has it too, it is used, and step 2 is skipped.
2. The collective public key, and where they are needed the relinearization key and rotation keys, all at once.
3. The sites agree, by signed hashes, on every joint key that they were shown, and on anything that was told before.
   Only then does anyone encrypt.

A site keeps its share locked in its vault. Refreshes take their public randomness from the roster of the job that does
them, so it is never the same twice, also under keys that are used again.

Reveals: nothing; in step 1, whether these sites have computed together before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from commonscale.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.errors import StateLost
from commonscale.keyshelf import KEY_SET_FORMAT, current
from commonscale.protocols import agreement
from commonscale.protocols.ckks import public_key, relinearization_key, rotation_keys
from commonscale.slot import HUB
from commonscale.v1.protocols_pb2 import KeyChoice, KeyOffer, KeySet
from crypto.ckks.context import Context, context_of
from crypto.ckks.evaluator import PublicKeys
from crypto.ckks.keys import SecretShare
from crypto.ckks.profiles import Profile
from crypto.ckks.skeleton import Coefficients, to_bytes

Work = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Needs:
    """Which keys a computation uses, and whether a set may be used again."""

    profile: Profile
    relinearization: bool = True
    rotations: tuple[int, ...] = ()
    reuse: bool = False


@dataclass(frozen=True)
class PartyKeys:
    """What a site holds of a key set."""

    ctx: Context
    share: SecretShare = field(repr=False)
    public_key: Any = field(repr=False)


def crs_seed(ch: Channel) -> bytes:
    """Public, and chosen by nobody: fresh keys of every site are in the roster."""
    return hashlib.sha256(b"commonscale/v1/crs-seed\0" + ch.roster_digest + ch.run.encode()).digest()


async def party(ch: Channel, needs: Needs, told: bytes = b"") -> PartyKeys:
    """Role of a site; `told` is what the sites must agree on beside the keys."""
    ctx = await offload(context_of, needs.profile)
    found = await _party_chosen(ch, needs) if needs.reuse else None  # 1.
    if found is None:
        found = await _party_made(ch, ctx, needs)  # 2.
    await agreement.party(ch, found.id + told)  # 3.
    if needs.reuse and ch.shelf is not None:
        await offload(ch.shelf.put, _family(ch, needs), found.SerializeToString())
    share = await offload(SecretShare.from_bytes, found.secret)
    key = await offload(ctx.public_key, ctx.key_shape.parse(found.public_key), found.seed)
    return PartyKeys(ctx, share, key)


async def coordinator(ch: Channel, needs: Needs) -> PublicKeys:
    """Role of the coordinator."""
    ctx = await offload(context_of, needs.profile)
    found = await _hub_chosen(ch) if needs.reuse else None  # 1.
    if found is None:
        found = await _hub_made(ch, ctx, needs)  # 2.
    await agreement.coordinator(ch)  # 3.
    if needs.reuse and ch.shelf is not None:
        await offload(ch.shelf.put, found.id.hex(), found.SerializeToString())
    return await offload(_public_keys, ctx, found)


async def _party_chosen(ch: Channel, needs: Needs) -> KeySet | None:
    """Step 1 at a site: what it offers stays with the job, whatever becomes of the shelf meanwhile."""
    held = await offload(current, ch.shelf, _family(ch, needs)) if ch.shelf is not None else None
    mine = KeySet.FromString(await ch.keep("KeySet", lambda: held.SerializeToString() if held else b""))
    if mine.format != KEY_SET_FORMAT:
        # A job that was under way when this daemon was upgraded may have kept a set of before.
        mine = KeySet()
    await ch.send(HUB, KeyOffer, lambda: KeyOffer(key_set=mine.id))
    chosen = (await ch.recv_broadcast(KeyChoice)).key_set
    if not chosen:
        return None
    if chosen != mine.id:
        raise StateLost(f"{ch.me} does not hold the keys that the coordinator chose in {ch.run}.")
    return mine


async def _hub_chosen(ch: Channel) -> KeySet | None:
    """Step 1 at the coordinator."""
    offers = {offer.key_set for offer in (await ch.gather(KeyOffer)).values()}
    offered = offers.pop() if len(offers) == 1 else b""
    held = await offload(current, ch.shelf, offered.hex()) if offered and ch.shelf is not None else None
    # What is on the shelf may be another thing after a restart: the choice is made once.
    choice = await ch.decide(KeyChoice(key_set=offered if held is not None else b""))
    if not choice.key_set:
        return None
    if held is None:
        raise StateLost("The coordinator no longer has the keys that it chose.", "Submit the job again.")
    return held


async def _party_made(ch: Channel, ctx: Context, needs: Needs) -> KeySet:
    """Step 2 at a site."""
    seed = crs_seed(ch)
    share, mine = await public_key.secret(ch, ctx, seed)
    work: list[Work] = [partial(public_key.party, ch, ctx, mine)]
    if needs.relinearization:
        work.append(partial(relinearization_key.party, ch, ctx, share, seed))
    if needs.rotations:
        work.append(partial(rotation_keys.party, ch, ctx, share, seed, needs.rotations))
    joint, *others = await concurrently(work)
    # Of rotation keys a site sees nothing joint.
    seen = [joint, *(others[0] if needs.relinearization else ())]
    return KeySet(
        id=_id(seed, seen), seed=seed, public_key=to_bytes(joint), secret=share.to_bytes(), format=KEY_SET_FORMAT
    )


async def _hub_made(ch: Channel, ctx: Context, needs: Needs) -> KeySet:
    """Step 2 at the coordinator."""
    work: list[Work] = [partial(public_key.coordinator, ch, ctx)]
    if needs.relinearization:
        work.append(partial(relinearization_key.coordinator, ch, ctx))
    if needs.rotations:
        work.append(partial(rotation_keys.coordinator, ch, ctx, needs.rotations))
    joint, *others = await concurrently(work)
    seed, seen = crs_seed(ch), [joint]
    found = KeySet(seed=seed, public_key=to_bytes(joint), format=KEY_SET_FORMAT)
    if needs.relinearization:
        joints, key = others.pop(0)
        seen += joints
        found.relinearization = to_bytes(key)
    for steps, key in others.pop(0).items() if needs.rotations else ():
        found.rotations[steps] = to_bytes(key)
    found.id = _id(seed, seen)
    return found


def _public_keys(ctx: Context, found: KeySet) -> PublicKeys:
    relinearization = ctx.switch_key.shape.parse(found.relinearization) if found.relinearization else None
    rotations = {steps: ctx.switch_half.parse(key) for steps, key in found.rotations.items()}
    return PublicKeys(found.seed, ctx.key_shape.parse(found.public_key), relinearization, rotations)


def _id(seed: bytes, joints: list[Coefficients]) -> bytes:
    """A hash of everything joint that a site sees of a key set."""
    return hashlib.sha256(seed + b"".join(hashlib.sha256(to_bytes(joint)).digest() for joint in joints)).digest()


def _family(ch: Channel, needs: Needs) -> str:
    """Sets that can take each other's place: the same sites with the same certificate keys, and the same needs."""
    assert ch.envelope is not None
    members = [(name, member.verify_key) for name, member in sorted(ch.envelope.members.items())]
    known = [(name, key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)) for name, key in members]
    text = repr((needs.profile.name, needs.relinearization, needs.rotations, known))
    return hashlib.sha256(text.encode()).hexdigest()
