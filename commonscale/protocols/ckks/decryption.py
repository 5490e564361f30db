"""Collective decryption: everyone learns the numbers, nobody the key.

CDecrypt of section III-C:
1. The coordinator sends the second polynomial c1 of each ciphertext, at its lowest height.
2. Each site sends d_i = c1·s_i + flooding noise.
3. The coordinator sends the numbers in c0 + Σ d_i to all; the sites agree that all were told the same.

A computation may open several times, and its later inputs follow from what was opened before. There, inputs come with
the sites' signed words on everything opened so far, step 1 shows these words to all, and the sites agree once, at the
end: a site helps to open nothing that was computed from answers to different questions.

Reveals: the numbers, to all sites and the coordinator. The sites trust the coordinator to ask for what the
computation says (semi-honest): they cannot see what is in a ciphertext that they help to open, and a c1 that was made
up for the purpose would show a site's key share itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from commonscale.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage
from commonscale.protocols import agreement
from commonscale.protocols.ckks.gathering import Receive, gather_sum, give, message, parse
from commonscale.slot import ALL
from commonscale.v1.protocols_pb2 import Confirmation, DecryptRequest, DecryptShare, Opened
from crypto.ckks.context import Context
from crypto.ckks.evaluator import Evaluator, Numbers, OnlyNoiseError
from crypto.ckks.keys import SecretShare
from crypto.ckks.opening import gen_decrypt_share, opening_shape


async def party(
    ch: Channel,
    ctx: Context,
    share: SecretShare,
    towers: int,
    lengths: Sequence[int],
    words: tuple[Channel, bytes] | None = None,
) -> list[Numbers]:
    """Role of a site: helps to open ciphertexts with so many numbers each.

    `words`: the channel of the last inputs, and what was told before them.
    """
    await answer(ch, ctx, share, towers, lengths, words)
    found = await opened(ch, lengths)
    if words is None:
        await agreement.party(ch, np.concatenate(found).tobytes())
    return found


async def opened(ch: Channel, lengths: Sequence[int]) -> list[Numbers]:
    """Step 3 at a site: what was told to all."""
    return _numbers(ch, (await ch.recv_broadcast(Opened)).numbers, lengths)


async def answer(
    ch: Channel,
    ctx: Context,
    share: SecretShare,
    towers: int,
    lengths: Sequence[int],
    words: tuple[Channel, bytes] | None = None,
    reply: Channel | None = None,
) -> None:
    """Steps 1 and 2 at a site. A stand-in replies on another channel."""
    shape = opening_shape(ctx, towers)
    request = await ch.recv_broadcast(DecryptRequest)  # 1.
    if words is not None:
        asked_in, told = words
        agreement.verify(asked_in, request.transcripts, told)
    requested = await offload(parse, ch, "the coordinator", request, shape, len(lengths))
    await give(reply or ch, DecryptShare, lambda: [gen_decrypt_share(ctx, share, c1, towers) for c1 in requested])  # 2.


async def coordinator(
    ch: Channel,
    evaluator: Evaluator,
    towers: int,
    ciphertexts: Sequence[Any],
    lengths: Sequence[int],
    transcripts: Sequence[Confirmation] | None = None,
    finish: Callable[[Numbers], Numbers] = np.asarray,
    receive: Receive | None = None,
) -> list[Numbers]:
    """Role of the coordinator; `finish` may leave out what nobody needs, such as noise around a sign."""
    shape = opening_shape(evaluator.ctx, towers)
    requests = await concurrently([_call(evaluator.decrypt_request, one, towers) for one in ciphertexts])
    asked = message(DecryptRequest, [c1 for _, c1 in requests])
    asked.transcripts.extend(transcripts or ())
    await ch.send(ALL, DecryptRequest, lambda: asked)  # 1.
    shares, _ = await gather_sum(ch, DecryptShare, shape, len(ciphertexts), receive)
    try:
        numbers = [
            finish(await offload(evaluator.decrypt, kept, joint, towers, length))
            for (kept, _), joint, length in zip(requests, shares, lengths, strict=True)
        ]
    except OnlyNoiseError:
        raise BadMessage(
            f"Only noise was opened in {ch.prefix}Opened of {ch.run}.",
            "A site sent a key share, an input or a decryption share that does not fit the others'.",
        ) from None
    # 3. OpenFHE's decoding adds noise of its own, so opening again after a crash would give other last digits.
    told = await ch.decide(Opened(numbers=np.concatenate(numbers).astype("<f8").tobytes()))
    if transcripts is None:
        await agreement.coordinator(ch)
    return _numbers(ch, told.numbers, lengths)


def _numbers(ch: Channel, raw: bytes, lengths: Sequence[int]) -> list[Numbers]:
    if len(raw) != 8 * sum(lengths):
        raise BadMessage(f"The coordinator opened {len(raw)} bytes in {ch.prefix}Opened of {ch.run}.")
    numbers = np.frombuffer(raw, "<f8")
    if not np.isfinite(numbers).all():
        raise BadMessage(f"What was opened in {ch.prefix}Opened of {ch.run} are no numbers.")
    return np.split(numbers, np.cumsum(lengths)[:-1])


def _call(function: Any, *args: Any) -> Any:
    return lambda: offload(function, *args)
