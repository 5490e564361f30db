"""Several coroutines at once, with the first error as itself instead of inside a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from exceptiongroup import BaseExceptionGroup

T = TypeVar("T")


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


def first_error(group: BaseException) -> BaseException:
    """The first leaf of nested groups."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
