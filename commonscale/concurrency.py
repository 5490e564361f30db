"""Several coroutines at once, with the first error as itself instead of inside a group."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import structlog
from exceptiongroup import BaseExceptionGroup

from commonscale.errors import TransientError

log = structlog.get_logger()

S = TypeVar("S")
T = TypeVar("T")

RETRY_S = 1.0


async def offload(function: Callable[..., T], *args: Any) -> T:
    """Run a blocking or long local step in a thread, so that the daemon goes on serving."""
    return await anyio.to_thread.run_sync(function, *args)


async def concurrently(work: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all, return their results in order; the first to fail ends the others and is raised."""
    results: list[Any] = [None] * len(work)

    async def one(index: int) -> None:
        results[index] = await work[index]()

    try:
        async with anyio.create_task_group() as tasks:
            for index in range(len(work)):
                tasks.start_soon(one, index)
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    return results


async def first_of(work: Callable[[], Awaitable[S]], *others: Callable[[], Awaitable[T]]) -> S | T:
    """Run all, return the result of the first to end; the first to end or to fail ends the others."""
    results: list[S | T] = []

    async def one(wanted: Callable[[], Awaitable[S | T]]) -> None:
        results.append(await wanted())
        tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, work)
            for other in others:
                tasks.start_soon(one, other)
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    return results[0]


async def retry(work: Callable[[], Awaitable[T]], waiting: str, *, shielded: bool = False, **context: str) -> T:
    """Repeat what a disk or a database does not take now until it does; `waiting` is what the log says meanwhile.

    Shielded: a shutdown may come in between, not in the middle.
    """
    while True:
        try:
            with anyio.CancelScope(shield=shielded):
                return await work()
        except TransientError as error:
            log.warning(waiting, **context, why=str(error))
            await anyio.sleep(RETRY_S)


def first_error(group: BaseException) -> BaseException:
    """The first leaf of nested groups."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
