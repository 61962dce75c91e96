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
    watcher = asyncio.create_task(_disconnected(receive))
    worker = asyncio.create_task(work)
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        watcher.result()
        raise ClientDisconnectedError("the client left before its answer was complete")
    finally:
        await settle(watcher, worker)


async def settle(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait until they are over; their results are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
