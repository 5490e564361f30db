"""The collective relinearization key, in two rounds.

1. Each site sends h_i = g·s_i - a·s_i + e_i; the coordinator sends h = Σ h_i to all.
2. Each site sends (a·s_i + e, h·s_i + e'); the sum is a key that switches s² to s.

Reveals: nothing; every message is a ring-LWE sample.
"""

from __future__ import annotations

from commonscale.channel import Channel
from commonscale.protocols.ckks.gathering import gather_sum, give, tell, told
from commonscale.v1.protocols_pb2 import RelinJoint, RelinProduct, RelinShare
from crypto.ckks.context import Context
from crypto.ckks.keys import SecretShare, gen_relin_product, gen_relin_share
from crypto.ckks.skeleton import Coefficients


async def party(ch: Channel, ctx: Context, share: SecretShare, seed: bytes) -> Coefficients:
    """Role of a site: returns h, which all sites compare."""
    await give(ch, RelinShare, lambda: [gen_relin_share(ctx, share, seed)])  # 1.
    (joint,) = await told(ch, RelinJoint, ctx.switch_half)
    await give(ch, RelinProduct, lambda: [gen_relin_product(ctx, share, joint, seed)])  # 2.
    return joint


async def coordinator(ch: Channel, ctx: Context) -> tuple[Coefficients, Coefficients]:
    """Role of the coordinator: returns h and the key."""
    joint, _ = await gather_sum(ch, RelinShare, ctx.switch_half)  # 1.
    await tell(ch, RelinJoint, joint)
    (key,), _ = await gather_sum(ch, RelinProduct, ctx.switch_key.shape)  # 2.
    return joint[0], key
