"""OPRF tokens of a site's values, from a keyholder that learns none of them.

1. The asker sends its values, blinded, with dummies up to the public bound, sealed to the keyholder.
2. The keyholder multiplies each by its secret and sends them back, sealed.
3. The asker takes its blinding away and has one token per value.
4. Where tokens are to be compared, every site sends its own among random ones.

The keyholder is a site, never the coordinator: whoever has the key can compute the token of any value it can think of,
and must not see anyone's tokens. It answers each site once in a run, for exactly as many points as the bound says.

Reveals: nothing to the keyholder, who sees uniform points; to the asker, tokens of its own values.
"""

import secrets
from collections.abc import Sequence
from functools import partial

import numpy as np

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage, StateLost
from commonscale.protocols.psi.items import Identifiers
from commonscale.v1.protocols_pb2 import BlindedItems, EvaluatedItems, Tokens
from crypto import oprf

# Of a token, where it is compared with others.
SHORT_BYTES = 16


async def tokens_of(ch: Channel, items: Sequence[bytes], bound: int, relay: Channel | None = None) -> list[bytes]:
    """All sites: one token per item; the first is the keyholder. By `relay` the coordinator gets the last's answer."""
    keyholder, *askers = ch.sites
    if ch.me != keyholder:
        inverses = await send_blinded(ch, keyholder, items, bound)
        evaluated = await ch.recv(EvaluatedItems, keyholder)
        return await offload(finalize, ch, keyholder, inverses, evaluated.points, bound)
    key = await ch.keep("OprfKey", oprf.gen_key)
    # While the others blind theirs.
    mine = await offload(oprf.tokens, key, items)
    answers = [partial(_answer, ch, key, asker, bound, asker) for asker in askers]
    if relay is not None:
        answers[-1] = partial(_answer, relay, key, askers[-1], bound, COORDINATOR)
    await concurrently(answers)
    return mine


async def send_blinded(ch: Channel, keyholder: str, items: Sequence[bytes], bound: int) -> list[bytes]:
    """Step 1; returns what takes the blinding of each item away again."""
    kept = await ch.keep(f"Blinds-{keyholder}", lambda: b"".join(oprf.gen_blind() for _ in items))
    blinds = pieces(kept, oprf.KEY_BYTES)

    def blinded() -> BlindedItems:
        points = [*map(oprf.blind, items, blinds), *(oprf.dummy() for _ in range(bound - len(items)))]
        return BlindedItems(points=b"".join(points))

    await ch.send(keyholder, BlindedItems, partial(offload, blinded))
    return await offload(lambda: [oprf.inverse_of(r) for r in blinds])


async def _answer(ch: Channel, key: bytes, asker: str, bound: int, receiver: str) -> None:
    """Step 2, towards one asker."""
    blinded = await ch.recv(BlindedItems, asker)

    def evaluated() -> EvaluatedItems:
        return EvaluatedItems(points=evaluate(ch, key, asker, blinded.points, bound))

    await ch.send(receiver, EvaluatedItems, partial(offload, evaluated))


def evaluate(ch: Channel, key: bytes, asker: str, blinded: bytes, bound: int) -> bytes:
    """Multiply an asker's points."""
    try:
        return b"".join(oprf.evaluate(key, split_points(ch, asker, blinded, bound)))
    except oprf.BadPointError:
        raise BadMessage(f"{asker} sent bytes in {ch.prefix}BlindedItems of {ch.run} that are no point.") from None


def finalize(ch: Channel, keyholder: str, inverses: Sequence[bytes], evaluated: bytes, bound: int) -> list[bytes]:
    """Step 3; answers to dummies are not looked at."""
    points = split_points(ch, keyholder, evaluated, bound)
    try:
        return [oprf.finalize(inverse, point) for inverse, point in zip(inverses, points, strict=False)]
    except oprf.BadPointError:
        raise BadMessage(f"{keyholder} sent bytes in {ch.prefix} of {ch.run} that are no point.") from None


def split_points(ch: Channel, sender: str, points: bytes, bound: int) -> list[bytes]:
    """Exactly as many points as the bound says, or BadMessage."""
    if len(points) != bound * oprf.POINT_BYTES:
        raise BadMessage(
            f"{sender} sent {len(points) // oprf.POINT_BYTES} points in {ch.prefix} of {ch.run}; "
            f"the public bound is {bound}."
        )
    return pieces(points, oprf.POINT_BYTES)


def pieces(raw: bytes, size: int) -> list[bytes]:
    """Bytes cut into pieces of one size."""
    return [raw[at : at + size] for at in range(0, len(raw), size)]


async def send_mixed(
    ch: Channel, receiver: str, found: Sequence[bytes], sizes: Sequence[int], bounds: Sequence[int]
) -> tuple[bytes, Identifiers]:
    """Step 4, to whoever compares them, if not to myself; returns what was sent, and where mine are in it."""
    short = [token[:SHORT_BYTES] for token in found]

    def mixed() -> bytes:
        """Up to the bound of each column, and in order: neither their number nor their order says anything."""
        columns, at = [], 0
        for size, bound in zip(sizes, bounds, strict=True):
            dummies = [secrets.token_bytes(SHORT_BYTES) for _ in range(bound - size)]
            columns += sorted([*short[at : at + size], *dummies])
            at += size
        return b"".join(columns)

    def places() -> Identifiers:
        where = {token: at for at, token in enumerate(pieces(sent, SHORT_BYTES))}
        if any(token not in where for token in short):
            raise StateLost(f"{ch.me} has sent other tokens in {ch.run} than it has now.", "Submit the job again.")
        return np.array([where[token] for token in short], dtype=np.int64)

    sent = await ch.keep("Mixed", mixed)
    if receiver != ch.me:
        await ch.deliver(receiver, Tokens(tokens=sent))
    return sent, await offload(places)


async def gather_mixed(ch: Channel, total: int) -> list[bytes]:
    """Step 4 at whoever compares them: what the other sites sent, in ring order."""
    received = await ch.gather(Tokens)
    for site, message in received.items():
        if len(message.tokens) != total * SHORT_BYTES:
            raise BadMessage(
                f"{site} sent {len(message.tokens) // SHORT_BYTES} tokens in {ch.prefix}Tokens of {ch.run}; "
                f"the public bound is {total}."
            )
    return [message.tokens for message in received.values()]
