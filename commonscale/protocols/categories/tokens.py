"""OPRF tokens of a site's values, from a keyholder that learns none of them.

1. The asker sends its values, blinded, with dummies up to the public bound, sealed to the keyholder.
2. The keyholder multiplies each by its secret and sends them back, sealed.
3. The asker takes its blinding away and has one token a value.

The keyholder is a site, never the coordinator: whoever has the key can compute the token of any value it can think of,
and must not see anyone's tokens. It answers each site once in a run, for exactly as many points as the bound says.

Reveals: nothing to the keyholder, who sees uniform points; to the asker, tokens of its own values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from commonscale.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage
from commonscale.v1.protocols_pb2 import BlindedItems, EvaluatedItems
from crypto import oprf


async def own_key(ch: Channel, name: str = "OprfKey") -> bytes:
    """The keyholder's secret: fresh in every run."""
    return await ch.keep(name, oprf.gen_key)


async def ask(ch: Channel, keyholder: str, items: Sequence[bytes], bound: int) -> list[bytes]:
    """Role of the asker: a token an item."""
    inverses = await send_blinded(ch, keyholder, items, bound)
    evaluated = split_points(ch, keyholder, (await ch.recv(EvaluatedItems, keyholder)).points, bound)
    return await offload(finalize, ch, keyholder, inverses, evaluated)


async def send_blinded(ch: Channel, keyholder: str, items: Sequence[bytes], bound: int) -> list[bytes]:
    """Step 1; returns what takes the blinding of each item away again."""
    kept = await ch.keep(f"Blinds-{keyholder}", lambda: b"".join(oprf.gen_blind() for _ in items))
    blinds = [kept[at : at + oprf.KEY_BYTES] for at in range(0, len(kept), oprf.KEY_BYTES)]

    def blinded() -> BlindedItems:
        points = [*map(oprf.blind, items, blinds), *(oprf.dummy() for _ in range(bound - len(items)))]
        return BlindedItems(points=b"".join(points))

    await ch.send(keyholder, BlindedItems, partial(offload, blinded))
    return await offload(lambda: [oprf.inverse_of(r) for r in blinds])


async def answer(ch: Channel, key: bytes, asker: str, bound: int, receiver: str | None = None) -> None:
    """Role of the keyholder towards one asker (step 2)."""
    points = split_points(ch, asker, (await ch.recv(BlindedItems, asker)).points, bound)

    def evaluated() -> EvaluatedItems:
        return EvaluatedItems(points=b"".join(evaluate(ch, key, asker, points)))

    await ch.send(receiver or asker, EvaluatedItems, partial(offload, evaluated))


async def answer_all(ch: Channel, key: bytes, askers: Sequence[str], bound: int) -> None:
    """Role of the keyholder towards several askers."""
    await concurrently([partial(answer, ch, key, asker, bound) for asker in askers])


def evaluate(ch: Channel, key: bytes, asker: str, points: Sequence[bytes]) -> list[bytes]:
    """Multiply an asker's points."""
    try:
        return oprf.evaluate(key, points)
    except oprf.BadPointError:
        raise BadMessage(f"{asker} sent bytes in {ch.prefix}BlindedItems of {ch.run} that are no point.") from None


def finalize(ch: Channel, keyholder: str, inverses: Sequence[bytes], evaluated: Sequence[bytes]) -> list[bytes]:
    """Step 3; answers to dummies are not looked at."""
    try:
        return [oprf.finalize(inverse, point) for inverse, point in zip(inverses, evaluated, strict=False)]
    except oprf.BadPointError:
        raise BadMessage(f"{keyholder} sent bytes in {ch.prefix} of {ch.run} that are no point.") from None


def split_points(ch: Channel, sender: str, points: bytes, bound: int) -> list[bytes]:
    """Exactly as many points as the bound says, or BadMessage."""
    if len(points) != bound * oprf.POINT_BYTES:
        raise BadMessage(
            f"{sender} sent {len(points) // oprf.POINT_BYTES} points in {ch.prefix} of {ch.run}; "
            f"the public bound is {bound}."
        )
    return [points[at : at + oprf.POINT_BYTES] for at in range(0, len(points), oprf.POINT_BYTES)]
