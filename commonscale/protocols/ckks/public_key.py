"""The collective public key.

Section III-C of "Bridging Local and Federated Data Normalization in FL" (KeyGen), as in Mouchet et al.:
1. Each site draws its secret s_i and sends b_i = e_i - a·s_i, with `a` from the common reference string.
2. The coordinator sends b = Σ b_i to all. (b, a) is a public key for s = Σ s_i, which nobody holds.

Differs from the paper: `a` comes from a public seed, so nobody chooses it and nobody must go first.

Reveals: nothing; each b_i is a ring-LWE sample.
"""

from __future__ import annotations

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols.ckks.gathering import gather_sum, give, tell, told
from commonscale.v1.protocols_pb2 import JointKey, KeyShare
from crypto.ckks.context import Context
from crypto.ckks.keys import SecretShare, gen_key_share
from crypto.ckks.skeleton import Coefficients, to_bytes


async def secret(ch: Channel, ctx: Context, seed: bytes) -> tuple[SecretShare, Coefficients]:
    """Step 1 at a site: s_i and b_i, kept as one, so that a crash between them cannot part them."""
    kept = await ch.keep("SecretShare", lambda: _pair(ctx, seed))
    size = ctx.key_shape.size_bytes
    return await offload(SecretShare.from_bytes, kept[size:]), ctx.key_shape.parse(kept[:size])


async def party(ch: Channel, ctx: Context, mine: Coefficients) -> Coefficients:
    """Role of a site that has its b_i: returns b."""
    await give(ch, KeyShare, lambda: [mine])  # 1.
    (joint,) = await told(ch, JointKey, ctx.key_shape)
    return joint


async def coordinator(ch: Channel, ctx: Context) -> Coefficients:
    """Role of the coordinator."""
    joint, _ = await gather_sum(ch, KeyShare, ctx.key_shape)  # 2.
    await tell(ch, JointKey, joint)
    return joint[0]


def _pair(ctx: Context, seed: bytes) -> bytes:
    share, b = gen_key_share(ctx, seed)
    return to_bytes(b) + share.to_bytes()
