"""Runs work for as long as the client is there, and ends it when the client leaves."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from dualpace.gateway.errors import ClientDisconnectedError

T = TypeVar("T")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the work's result, or cancel it when the client leaves first.

    Raises ClientDisconnectedError then. The request's body must have been read: what `receive`
    gives after it can only be the end. On return, cancelled or not, no task of this is left.
    """
    task = asyncio.current_task()
    assert task is not None
    watching = True
    woken = False

    def wake(_: asyncio.Task[T]) -> None:
        nonlocal woken
        if watching:
            woken = task.cancel()

    # Work has a task of its own so that what it waits for resumes it, and not its callers first.
    worker = asyncio.create_task(work)
    worker.add_done_callback(wake)
    try:
        await _disconnected(receive)
    except asyncio.CancelledError:
        if not woken or task.cancelling() > 1:
            raise
    finally:
        watching = False
        if woken:
            task.uncancel()
        if not worker.done():
            await settle(worker)
    if worker.cancelled():
        raise ClientDisconnectedError("the client left before its answer was complete")
    return worker.result()


async def settle(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait until they are over; their results are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
