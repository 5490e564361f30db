"""Collective bootstrapping: ciphertexts back at full height, without anyone seeing what is in them.

CBootstrap of section III-C, all ciphertexts of a moment in one round:
1. The coordinator sends the second polynomial c1 of each ciphertext.
2. Each site draws a mask m_i and sends (c1·s_i - m_i + e, a·s_i + m_i + e').
3. The coordinator adds them up: the message less all masks, and all masks encrypted at full height.

`a` comes from the common reference string, under a label that no other refresh of any run has.

Reveals: nothing; the coordinator sees the message less masks that are uniform.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from commonscale.channel.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.protocols.ckks.gathering import Receive, announced, gather_sum, give, message
from commonscale.v1.protocols_pb2 import RefreshRequest, RefreshShare
from crypto.ckks.context import Context
from crypto.ckks.evaluator import Evaluator
from crypto.ckks.keys import SecretShare
from crypto.ckks.opening import gen_refresh_share, refresh_request_shape, refresh_share_shape


async def site(ch: Channel, ctx: Context, seed: bytes, count: int, share: SecretShare, reply: Channel) -> None:
    """Role of a site: helps to refresh `count` ciphertexts. A stand-in replies on another channel."""
    requested = await announced(ch, RefreshRequest, refresh_request_shape(ctx), count)  # 1.
    await give(  # 2.
        reply,
        RefreshShare,
        lambda: [gen_refresh_share(ctx, share, c1, seed, _label(ch, at)) for at, c1 in enumerate(requested)],
    )


async def coordinator(
    ch: Channel, evaluator: Evaluator, seed: bytes, ciphertexts: Sequence[Any], receive: Receive
) -> list[Any]:
    """Role of the coordinator."""
    requests = await concurrently([partial(offload, evaluator.refresh_request, one) for one in ciphertexts])
    await ch.broadcast(message(RefreshRequest, [c1 for _, c1 in requests]))  # 1.
    shares, _ = await gather_sum(ch, RefreshShare, refresh_share_shape(evaluator.ctx), len(ciphertexts), receive)
    return await concurrently(  # 3.
        [
            partial(offload, evaluator.refresh, kept, joint, seed, _label(ch, at))
            for at, ((kept, _), joint) in enumerate(zip(requests, shares, strict=True))
        ]
    )


def _label(ch: Channel, at: int) -> str:
    return f"{ch.run}/{ch.prefix}{at}"
