"""Work that ends with its client: results, failures, leaving and being cancelled, in any order."""

import asyncio

import pytest
from starlette.types import Message, Receive

from dualpace.gateway.errors import ClientDisconnectedError
from dualpace.gateway.http.disconnect import while_connected

pytestmark = pytest.mark.asyncio

GONE = "http.disconnect"


def client_that_leaves(after: asyncio.Event) -> Receive:
    async def receive() -> Message:
        await after.wait()
        return {"type": GONE}

    return receive


async def assert_nothing_left() -> None:
    task = asyncio.current_task()
    assert task is not None
    assert asyncio.all_tasks() == {task}
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # a cancellation that is still on its way would be raised here


async def test_the_result_comes_back() -> None:
    async def work(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    for turns in range(4):
        assert await while_connected(client_that_leaves(asyncio.Event()), work(turns)) == turns
        await assert_nothing_left()


async def test_a_failure_comes_back() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await while_connected(client_that_leaves(asyncio.Event()), work())
    await assert_nothing_left()


async def test_work_is_cancelled_and_cleans_up_when_the_client_leaves() -> None:
    left = asyncio.Event()
    cleaned = asyncio.Event()

    async def work() -> None:
        asyncio.get_running_loop().call_soon(left.set)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    with pytest.raises(ClientDisconnectedError):
        await while_connected(client_that_leaves(left), work())
    assert cleaned.is_set()
    await assert_nothing_left()


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("leaves", range(5))
async def test_a_client_that_leaves_as_the_work_ends(turns: int, leaves: int) -> None:
    left = asyncio.Event()

    async def leave() -> None:
        for _ in range(leaves):
            await asyncio.sleep(0)
        left.set()

    async def work() -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return "done"

    leaving = asyncio.create_task(leave())
    try:
        assert await while_connected(client_that_leaves(left), work()) == "done"
    except ClientDisconnectedError:
        assert left.is_set()
    await leaving
    await assert_nothing_left()


@pytest.mark.parametrize("turns", range(1, 6))
async def test_being_cancelled_is_no_leaving(turns: int) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            ended.set()

    task = asyncio.create_task(while_connected(client_that_leaves(asyncio.Event()), work()))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or (turns > 1 and task.exception() is None)
    assert ended.is_set() or turns <= 1
    await assert_nothing_left()
