"""A set of collective keys: made together, agreed upon, then used.

1. The collective public key, and where they are needed the relinearization key and rotation keys, all at once.
2. The sites agree, by signed hashes, on every joint key that they were shown. Only then does anyone encrypt.

Reveals: nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from commonscale.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.protocols import agreement
from commonscale.protocols.ckks import public_key, relinearization_key, rotation_keys
from crypto.ckks.context import Context, context_of
from crypto.ckks.evaluator import PublicKeys
from crypto.ckks.keys import SecretShare
from crypto.ckks.profiles import Profile
from crypto.ckks.skeleton import Coefficients, to_bytes

Work = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Needs:
    """Which keys a computation uses."""

    profile: Profile
    relinearization: bool = True
    rotations: tuple[int, ...] = ()


@dataclass(frozen=True)
class PartyKeys:
    """What a site holds of a key set."""

    ctx: Context
    share: SecretShare = field(repr=False)
    public_key: Any = field(repr=False)


def crs_seed(ch: Channel) -> bytes:
    """Public, and chosen by nobody: fresh keys of every site are in the roster."""
    return hashlib.sha256(b"commonscale/v1/crs-seed\0" + ch.roster_digest + ch.run.encode()).digest()


async def party(ch: Channel, needs: Needs) -> PartyKeys:
    """Role of a site."""
    ctx = await offload(context_of, needs.profile)
    seed = crs_seed(ch)
    share, mine = await public_key.secret(ch, ctx, seed)
    work: list[Work] = [partial(public_key.party, ch, ctx, mine)]  # 1.
    if needs.relinearization:
        work.append(partial(relinearization_key.party, ch, ctx, share, seed))
    if needs.rotations:
        work.append(partial(rotation_keys.party, ch, ctx, share, seed, needs.rotations))
    seen = [joint for joint in await concurrently(work) if joint is not None]
    await agreement.party(ch, _transcript(seed, seen))  # 2.
    return PartyKeys(ctx, share, await offload(ctx.public_key, seen[0], seed))


async def coordinator(ch: Channel, needs: Needs) -> PublicKeys:
    """Role of the coordinator."""
    ctx = await offload(context_of, needs.profile)
    work: list[Work] = [partial(public_key.coordinator, ch, ctx)]  # 1.
    if needs.relinearization:
        work.append(partial(relinearization_key.coordinator, ch, ctx))
    if needs.rotations:
        work.append(partial(rotation_keys.coordinator, ch, ctx, needs.rotations))
    joint, *others = await concurrently(work)
    await agreement.coordinator(ch)  # 2.
    relinearization = others.pop(0)[1] if needs.relinearization else None
    rotations = others.pop(0) if needs.rotations else {}
    return PublicKeys(crs_seed(ch), joint, relinearization, rotations)


def _transcript(seed: bytes, joints: list[Coefficients]) -> bytes:
    return seed + b"".join(hashlib.sha256(to_bytes(joint)).digest() for joint in joints)
