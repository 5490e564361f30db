"""The collective public key.

Section III-C of "Bridging Local and Federated Data Normalization in FL" (KeyGen), as in Mouchet et al.:
1. Each site draws its secret s_i and sends b_i = e_i - a·s_i, with `a` from the common reference string.
2. The coordinator sends b = Σ b_i to all. (b, a) is a public key for s = Σ s_i, which nobody holds.

Differs from the paper: `a` comes from a public seed, so nobody chooses it and nobody must go first.

Reveals: nothing; each b_i is a ring-LWE sample.
"""

from commonscale.channel.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols.ckks.gathering import announce
from commonscale.v1.protocols_pb2 import JointKey, KeyShare
from crypto.ckks.context import Context
from crypto.ckks.keys import SecretShare, gen_key_share
from crypto.ckks.skeleton import Coefficients, to_bytes


async def secret(ch: Channel, ctx: Context, seed: bytes) -> tuple[SecretShare, Coefficients]:
    """Step 1 at a site: s_i and b_i, kept as one, so that a crash between them cannot part them."""

    def pair() -> bytes:
        share, b = gen_key_share(ctx, seed)
        return to_bytes(b) + share.to_bytes()

    kept = await ch.keep("SecretShare", pair)
    size = ctx.key_shape.size_bytes
    return await offload(SecretShare.from_bytes, kept[size:]), ctx.key_shape.parse(kept[:size])


async def make(ch: Channel, ctx: Context, mine: Coefficients | None) -> Coefficients:
    """All roles: b; a site has its b_i."""
    (joint,) = await announce(ch, KeyShare, JointKey, ctx.key_shape, 1, lambda: [mine] if mine is not None else [])
    return joint
