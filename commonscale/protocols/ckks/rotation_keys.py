"""Collective rotation keys: one message a site.

1. For each rotation r, each site sends g·φ_r(s_i) - a_r·s_i + e_i; the sum is a key that rotates by r slots.

Reveals: nothing; every message is a ring-LWE sample.
"""

from __future__ import annotations

from collections.abc import Sequence

from commonscale.channel import Channel
from commonscale.protocols.ckks.gathering import gather_sum, give
from commonscale.v1.protocols_pb2 import RotationShare
from crypto.ckks.context import Context
from crypto.ckks.keys import SecretShare, gen_rotation_share
from crypto.ckks.skeleton import Coefficients


async def party(ch: Channel, ctx: Context, share: SecretShare, seed: bytes, rotations: Sequence[int]) -> None:
    """Role of a site."""
    await give(ch, RotationShare, lambda: [gen_rotation_share(ctx, share, steps, seed) for steps in rotations])


async def coordinator(ch: Channel, ctx: Context, rotations: Sequence[int]) -> dict[int, Coefficients]:
    """Role of the coordinator."""
    found, _ = await gather_sum(ch, RotationShare, ctx.switch_half, len(rotations))
    return dict(zip(rotations, found, strict=True))
