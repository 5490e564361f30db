"""A set of collective keys: made together, agreed upon, then used; by one step, or by later jobs of the same sites too.

1. Where keys may be used again: each site names the set that it holds for these sites and these needs; if all name the
   same and the coordinator has it too, it is used, and step 2 is skipped.
2. The collective public key, and where they are needed the relinearization key and rotation keys, all at once.
3. The sites agree, by signed hashes, on every joint key that they were shown. Only then does anyone
   encrypt.

A site keeps its share locked in its vault. Refreshes take their public randomness from the roster of the job that does
them, so it is never the same twice, also under keys that are used again.

Reveals: nothing; in step 1, whether these sites have computed together before.
"""

import hashlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import concurrently, offload
from commonscale.errors import StateLost
from commonscale.keyshelf import KEY_SET_FORMAT, current
from commonscale.protocols import agreement
from commonscale.protocols.ckks import public_key, relinearization_key, rotation_keys
from commonscale.protocols.ckks.levels import REUSE
from commonscale.v1.protocols_pb2 import KeyChoice, KeyOffer, KeySet
from crypto.ckks.context import Context, context_of
from crypto.ckks.evaluator import PublicKeys
from crypto.ckks.keys import SecretShare
from crypto.ckks.profiles import Profile
from crypto.ckks.skeleton import to_bytes


@dataclass(frozen=True)
class Needs:
    """Which keys a computation uses, and whether a set may be used again."""

    profile: Profile
    relinearization: bool = True
    rotations: tuple[int, ...] = ()
    reuse: bool = False


@dataclass(frozen=True)
class SiteKeys:
    """What a site holds of a key set."""

    ctx: Context
    share: SecretShare = field(repr=False)
    public_key: Any = field(repr=False)


def crs_seed(ch: Channel) -> bytes:
    """Public, and chosen by nobody: fresh keys of every site are in the roster."""
    return hashlib.sha256(b"commonscale/v1/crs-seed\0" + ch.roster_digest + ch.run.encode()).digest()


async def obtain(ch: Channel, needs: Needs) -> KeySet:
    """All roles: a key set; a site's has its secret share, the coordinator's the keys to compute with."""
    found = await _chosen(ch, needs) if needs.reuse else None  # 1.
    if found is None:
        found = await _made(ch, needs)  # 2.
    await agreement.agree(ch, found.id)  # 3.
    if needs.reuse and ch.shelf is not None:
        name = found.id.hex() if ch.is_coordinator else _family(ch, needs)
        await offload(ch.shelf.put, name, found.SerializeToString())
    return found


def site_keys(needs: Needs, found: KeySet) -> SiteKeys:
    """What a site computes with."""
    ctx = context_of(needs.profile)
    key = ctx.public_key(ctx.key_shape.parse(found.public_key), found.seed)
    return SiteKeys(ctx, SecretShare.from_bytes(found.secret), key)


def public_keys(needs: Needs, found: KeySet) -> PublicKeys:
    """What the coordinator computes with."""
    ctx = context_of(needs.profile)
    relinearization = ctx.switch_key.shape.parse(found.relinearization) if found.relinearization else None
    rotations = {steps: ctx.switch_half.parse(key) for steps, key in found.rotations.items()}
    return PublicKeys(found.seed, ctx.key_shape.parse(found.public_key), relinearization, rotations)


async def _chosen(ch: Channel, needs: Needs) -> KeySet | None:
    """Step 1: the set that all still hold, if there is one."""
    ch = ch.under(REUSE)
    if ch.is_coordinator:
        return await _coordinator_chosen(ch)
    # What a site offers stays with the job, whatever becomes of the shelf meanwhile.
    held = await offload(current, ch.shelf, _family(ch, needs)) if ch.shelf is not None else None
    mine = KeySet.FromString(await ch.keep("KeySet", lambda: held.SerializeToString() if held else b""))
    if mine.format != KEY_SET_FORMAT:
        # A job that was under way when this daemon was upgraded may have kept a set of before.
        mine = KeySet()
    await ch.send(COORDINATOR, KeyOffer, lambda: KeyOffer(key_set=mine.id))
    chosen = (await ch.recv_broadcast(KeyChoice)).key_set
    if not chosen:
        return None
    if chosen != mine.id:
        raise StateLost(f"{ch.me} does not hold the keys that the coordinator chose in {ch.run}.")
    return mine


async def _coordinator_chosen(ch: Channel) -> KeySet | None:
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


async def _made(ch: Channel, needs: Needs) -> KeySet:
    """Step 2: all keys at once."""
    ctx, seed = await offload(context_of, needs.profile), crs_seed(ch)
    share, mine = await public_key.secret(ch, ctx, seed) if ch.is_site else (None, None)
    work: list[Any] = [
        partial(public_key.make, ch, ctx, mine),
        partial(rotation_keys.make, ch, ctx, share, seed, needs.rotations),
    ]
    if needs.relinearization:
        work.append(partial(relinearization_key.make, ch, ctx, share, seed))
    joint, rotations, *relinearization = await concurrently(work)
    ((joints, key),) = relinearization or [([], None)]
    # A hash of everything joint that a site sees of a key set; rotation keys show it nothing joint.
    seen = (hashlib.sha256(to_bytes(one)).digest() for one in (joint, *joints))
    return KeySet(
        id=hashlib.sha256(seed + b"".join(seen)).digest(),
        seed=seed,
        public_key=to_bytes(joint),
        relinearization=to_bytes(key) if key is not None else b"",
        rotations={steps: to_bytes(half) for steps, half in rotations.items()},
        secret=share.to_bytes() if share is not None else b"",
        format=KEY_SET_FORMAT,
    )


def _family(ch: Channel, needs: Needs) -> str:
    """Sets that can take each other's place: the same sites with the same certificate keys, and the same needs."""
    assert ch.envelope is not None
    members = [(name, member.verify_key) for name, member in sorted(ch.envelope.members.items())]
    known = [(name, key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)) for name, key in members]
    text = repr((needs.profile.name, needs.relinearization, needs.rotations, known))
    return hashlib.sha256(text.encode()).hexdigest()
