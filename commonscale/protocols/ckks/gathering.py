"""Polynomials of all sites: checked one by one, added up as they come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
from google.protobuf.message import Message

from commonscale.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage
from commonscale.slot import ALL, HUB
from crypto.ckks.skeleton import BadCoefficientsError, Coefficients, Shape, to_bytes

M = TypeVar("M", bound=Message)


def message(kind: type[M], polynomials: Sequence[Coefficients]) -> M:
    """A message of polynomials."""
    return kind(polynomials=[to_bytes(one) for one in polynomials])


def parse(ch: Channel, sender: str, received: Any, shape: Shape, count: int) -> list[Coefficients]:
    """The polynomials of a peer's message, or BadMessage naming the peer and the message."""
    what = f"{ch.prefix}{received.DESCRIPTOR.name} in {ch.run}"
    if len(received.polynomials) != count:
        raise BadMessage(f"{sender} sent {len(received.polynomials)} polynomials in {what} instead of {count}.")
    try:
        return [shape.parse(raw) for raw in received.polynomials]
    except BadCoefficientsError as error:
        raise BadMessage(
            f"{sender} sent a bad {what}: {error}.", "It was damaged, or made with another parameter set."
        ) from None


# How a site's message is awaited, where a plain wait would not do.
Receive = Callable[[Channel, Any, str], Awaitable[Any]]


async def gather_sum(
    ch: Channel, kind: type[M], shape: Shape, count: int = 1, receive: Receive | None = None
) -> tuple[list[Coefficients], dict[str, M]]:
    """The sum over all sites of each of `count` polynomials. It is exact, so the order of arrival does not matter.

    Also returns what else the messages say, without the polynomials.
    """
    total: list[Coefficients] = []
    rest: dict[str, M] = {}
    adding = anyio.Lock()

    def add(sender: str, received: M) -> None:
        parts = parse(ch, sender, received, shape, count)
        total[:] = [shape.add(pair) for pair in zip(total, parts, strict=True)] if total else parts

    async def one(sender: str) -> None:
        received: M = await (receive(ch, kind, sender) if receive else ch.recv(kind, sender))
        async with adding:
            await offload(add, sender, received)
            del received.polynomials[:]  # type: ignore[attr-defined]
            rest[sender] = received

    await concurrently([partial(one, sender) for sender in ch.parties])
    return total, rest


async def tell(ch: Channel, kind: type[M], polynomials: Sequence[Coefficients]) -> None:
    """From the coordinator to all sites."""
    await ch.send(ALL, kind, lambda: message(kind, polynomials))


async def told(ch: Channel, kind: type[M], shape: Shape, count: int = 1) -> list[Coefficients]:
    """What the coordinator told all sites."""
    received = await ch.recv_broadcast(kind)
    return await offload(parse, ch, "the coordinator", received, shape, count)


async def give(ch: Channel, kind: type[M], make: Any) -> bytes:
    """From a site to the coordinator; `make` computes the polynomials, once and in a thread."""

    async def made() -> M:
        return message(kind, await offload(make))

    return await ch.send(HUB, kind, made)
