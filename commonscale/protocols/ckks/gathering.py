"""Polynomials of all sites: checked one by one, added up as they come."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
from google.protobuf.message import Message

from commonscale.channel.channel import Channel
from commonscale.channel.slot import COORDINATOR
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage
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


# A site's own polynomials: called at a site only.
Make = Callable[[], Sequence[Coefficients]]
# How a site's message is awaited, where a plain wait would not do.
Receive = Callable[[Channel, Any, str], Awaitable[Any]]


async def gather_sum(
    ch: Channel, kind: type[M], shape: Shape, count: int, receive: Receive = Channel.recv
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
        received: M = await receive(ch, kind, sender)
        async with adding:
            await offload(add, sender, received)
            del received.polynomials[:]  # type: ignore[attr-defined]
            rest[sender] = received

    await concurrently([partial(one, sender) for sender in ch.sites])
    return total, rest


async def collect(ch: Channel, part: type[M], shape: Shape, count: int, make: Make) -> list[Coefficients] | None:
    """All roles: the sum of every site's polynomials, at the coordinator, who keeps it; nothing at a site."""
    if ch.is_coordinator:
        return (await gather_sum(ch, part, shape, count))[0]
    await give(ch, part, make)
    return None


async def announce(
    ch: Channel, part: type[M], joint: type[Message], shape: Shape, count: int, make: Make
) -> list[Coefficients]:
    """All roles: the sum of every site's polynomials, which the coordinator sends to all."""
    total = await collect(ch, part, shape, count, make)
    if total is None:
        return await announced(ch, joint, shape, count)
    await ch.broadcast(message(joint, total))
    return total


async def announced(ch: Channel, kind: type[M], shape: Shape, count: int) -> list[Coefficients]:
    """What the coordinator announced to all sites."""
    received = await ch.recv_broadcast(kind)
    return await offload(parse, ch, "the coordinator", received, shape, count)


async def give(ch: Channel, kind: type[M], make: Make) -> None:
    """From a site to the coordinator; `make` computes the polynomials, once and in a thread."""
    await ch.send(COORDINATOR, kind, partial(offload, lambda: message(kind, make())))
