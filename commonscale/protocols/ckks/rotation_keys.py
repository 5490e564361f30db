"""Collective rotation keys: one message per site.

1. For each rotation r, each site sends g·φ_r(s_i) - a_r·s_i + e_i; the sum is a key that rotates by r slots.

Reveals: nothing; every message is a ring-LWE sample.
"""

from collections.abc import Sequence

from commonscale.channel.channel import Channel
from commonscale.protocols.ckks.gathering import collect
from commonscale.v1.protocols_pb2 import RotationShare
from crypto.ckks.context import Context
from crypto.ckks.keys import SecretShare, gen_rotation_share
from crypto.ckks.skeleton import Coefficients


async def make(
    ch: Channel, ctx: Context, share: SecretShare | None, seed: bytes, rotations: Sequence[int]
) -> dict[int, Coefficients]:
    """All roles: the keys, at the coordinator; nothing at a site."""
    if not rotations:
        return {}

    def mine() -> list[Coefficients]:
        assert share is not None
        return [gen_rotation_share(ctx, share, steps, seed) for steps in rotations]

    found = await collect(ch, RotationShare, ctx.switch_half, len(rotations), mine)
    return dict(zip(rotations, found, strict=True)) if found is not None else {}
