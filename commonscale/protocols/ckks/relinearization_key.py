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

from commonscale.channel.channel import Channel
from commonscale.concurrency import offload
from commonscale.protocols.ckks.gathering import announce, collect
from commonscale.v1.protocols_pb2 import RelinJoint, RelinProduct, RelinShare
from crypto.ckks.context import Context
from crypto.ckks.keys import SecretShare, gen_ephemeral_secret, gen_relin_product, gen_relin_share, relin_key
from crypto.ckks.skeleton import Coefficients


async def make(
    ch: Channel, ctx: Context, share: SecretShare | None, seed: bytes
) -> tuple[list[Coefficients], Coefficients | None]:
    """All roles: h0 and h1, which all sites compare; and the key, at the coordinator."""
    mine: tuple[SecretShare, SecretShare] | None = None
    if share is not None:
        ephemeral = await ch.keep("EphemeralSecret", lambda: gen_ephemeral_secret(ctx).to_bytes())
        mine = share, await offload(SecretShare.from_bytes, ephemeral)

    def secrets() -> tuple[SecretShare, SecretShare]:
        assert mine is not None
        return mine

    h0, h1 = await announce(  # 1.
        ch, RelinShare, RelinJoint, ctx.switch_half, 2, lambda: gen_relin_share(ctx, *secrets(), seed)
    )
    products = await collect(  # 2.
        ch, RelinProduct, ctx.switch_half, 1, lambda: [gen_relin_product(ctx, *secrets(), h0, h1)]
    )
    return [h0, h1], relin_key(h1, products[0]) if products is not None else None
