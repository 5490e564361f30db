"""Collective decryption: everyone learns the numbers, nobody the key.

CDecrypt of section III-C:
1. The coordinator sends the second polynomial c1 of each ciphertext, at its lowest height.
2. Each site sends d_i = c1·s_i + flooding noise.
3. The coordinator sends the numbers in c0 + Σ d_i to all.

A computation may open several times, and its later inputs follow from what was opened before. So inputs come with the
sites' signed words on everything opened so far, step 1 shows these words to all, and the sites agree once, at the end
of the run: a site helps to open nothing that was computed from answers to different questions.

Reveals: the numbers, to all sites and the coordinator. The sites trust the coordinator to ask for what the
computation says (semi-honest): they cannot see what is in a ciphertext that they help to open, and a c1 that was made
up for the purpose would show a site's key share itself.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from commonscale.channel.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage
from commonscale.protocols import agreement
from commonscale.protocols.ckks.gathering import Receive, gather_sum, give, message, parse
from commonscale.protocols.ckks.levels import Numbers, Opening
from commonscale.v1.protocols_pb2 import Confirmation, DecryptRequest, DecryptShare, Opened
from crypto.ckks.context import Context
from crypto.ckks.evaluator import Evaluator, OnlyNoiseError
from crypto.ckks.keys import SecretShare
from crypto.ckks.opening import gen_decrypt_share, opening_shape


async def answer(
    ch: Channel, ctx: Context, opening: Opening, asked: tuple[Channel, bytes], share: SecretShare, reply: Channel
) -> None:
    """Steps 1 and 2 at a site: helps to open ciphertexts. A stand-in replies on another channel.

    `asked`: the channel of the last inputs, and what was announced before them.
    """
    request = await ch.recv_broadcast(DecryptRequest)  # 1.
    asked_in, before = asked
    agreement.verify(asked_in, request.transcripts, before)
    shape, towers = opening_shape(ctx, opening.towers), opening.towers
    requested = await offload(parse, ch, "the coordinator", request, shape, len(opening.lengths))
    await give(reply, DecryptShare, lambda: [gen_decrypt_share(ctx, share, c1, towers) for c1 in requested])  # 2.


async def opened(ch: Channel, opening: Opening) -> Numbers:
    """Step 3 at a site: what was announced to all."""
    return _numbers(ch, (await ch.recv_broadcast(Opened)).numbers, opening)


async def coordinator(
    ch: Channel,
    evaluator: Evaluator,
    ciphertexts: Sequence[Any],
    opening: Opening,
    transcripts: Sequence[Confirmation],
    receive: Receive,
) -> Numbers:
    """Role of the coordinator, who leaves out what nobody needs, such as noise around a sign."""
    towers = opening.towers
    requests = await concurrently([partial(offload, evaluator.decrypt_request, one, towers) for one in ciphertexts])
    asked = message(DecryptRequest, [c1 for _, c1 in requests])
    asked.transcripts.extend(transcripts)
    await ch.broadcast(asked)  # 1.
    shape = opening_shape(evaluator.ctx, towers)
    shares, _ = await gather_sum(ch, DecryptShare, shape, len(ciphertexts), receive)
    try:
        numbers = [
            await offload(evaluator.decrypt, kept, joint, towers, length)
            for (kept, _), joint, length in zip(requests, shares, opening.lengths, strict=True)
        ]
    except OnlyNoiseError:
        raise BadMessage(
            f"Only noise was opened in {ch.prefix}Opened of {ch.run}.",
            "A site sent a key share, an input or a decryption share that does not fit the others'.",
        ) from None
    # 3. OpenFHE's decoding adds noise of its own, so opening again after a crash would give other last digits.
    finished = opening.finish(np.concatenate(numbers))
    announced = await ch.decide(Opened(numbers=finished.astype("<f8").tobytes()))
    return _numbers(ch, announced.numbers, opening)


def _numbers(ch: Channel, raw: bytes, opening: Opening) -> Numbers:
    if len(raw) != 8 * sum(opening.lengths):
        raise BadMessage(f"The coordinator opened {len(raw)} bytes in {ch.prefix}Opened of {ch.run}.")
    numbers = np.frombuffer(raw, "<f8")
    if not np.isfinite(numbers).all():
        raise BadMessage(f"What was opened in {ch.prefix}Opened of {ch.run} are no numbers.")
    return numbers
