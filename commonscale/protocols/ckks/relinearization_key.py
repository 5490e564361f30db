"""The collective relinearization key, in two rounds.

Protocol 2 of Mouchet et al. (2020), "Multiparty Homomorphic Encryption from Ring-Learning-with-Errors":
1. Each site draws an ephemeral secret u_i and sends h0_i = g·s_i - a·u_i + e and h1_i = a·s_i + e'; the coordinator
   sends h0 = Σ h0_i and h1 = Σ h1_i to all.
2. Each site sends r_i = s_i·h0 + (u_i - s_i)·h1 + e''; (h1, Σ r_i) is a key that switches s² to s.

u_i is kept before anything is sent and used for one answer in each round: a second answer to another (h0, h1) would
be a second equation for the same secrets.

Differs from the paper: e'' is the sum of three errors, because OpenFHE adds one to each product.

Reveals: nothing; every message is a ring-LWE sample, and no two of them hide behind the same mask.
"""

from __future__ import annotations

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols.ckks.gathering import gather_sum, give, tell, told
from commonscale.v1.protocols_pb2 import RelinJoint, RelinProduct, RelinShare
from crypto.ckks.context import Context
from crypto.ckks.keys import SecretShare, gen_ephemeral_secret, gen_relin_product, gen_relin_share, relin_key
from crypto.ckks.skeleton import Coefficients


async def party(ch: Channel, ctx: Context, share: SecretShare, seed: bytes) -> list[Coefficients]:
    """Role of a site: returns h0 and h1, which all sites compare."""
    kept = await ch.keep("EphemeralSecret", lambda: gen_ephemeral_secret(ctx).to_bytes())
    ephemeral = await offload(SecretShare.from_bytes, kept)
    await give(ch, RelinShare, lambda: gen_relin_share(ctx, share, ephemeral, seed))  # 1.
    h0, h1 = await told(ch, RelinJoint, ctx.switch_half, 2)
    await give(ch, RelinProduct, lambda: [gen_relin_product(ctx, share, ephemeral, h0, h1)])  # 2.
    return [h0, h1]


async def coordinator(ch: Channel, ctx: Context) -> tuple[list[Coefficients], Coefficients]:
    """Role of the coordinator: returns h0 and h1, and the key."""
    joints, _ = await gather_sum(ch, RelinShare, ctx.switch_half, 2)  # 1.
    await tell(ch, RelinJoint, joints)
    (products,), _ = await gather_sum(ch, RelinProduct, ctx.switch_half)  # 2.
    return joints, relin_key(joints[1], products)
