"""The merged generations of a request: order, ends, cancels, failures. In this process, no HTTP."""

import asyncio
from collections.abc import Iterable

import pytest

from dualpace.core.errors import PeerLostError
from dualpace.core.request import FinishReason, SamplingParams
from dualpace.gateway.engines.backend import (
    GeneratedToken,
    GenerationEnd,
    GenerationEvent,
    GenerationParams,
)
from dualpace.gateway.engines.generation_group import GenerationGroup
from dualpace.gateway.errors import ApiError, unavailable
from dualpace.gateway.planning import ChoicePlan
from dualpace.gateway.text.prompts import TokenizedPrompt
from dualpace.testing.fake_backend import Break, End, FakeBackend, Hold, Pause, Step, always

pytestmark = pytest.mark.asyncio

EOS = 2


def plans(count: int) -> list[ChoicePlan]:
    params = GenerationParams(max_tokens=50, stop_token_ids=(EOS,), sampling=SamplingParams())
    return [ChoicePlan(index=i, prompt=TokenizedPrompt((i,)), params=params) for i in range(count)]


def by_prompt(scripts: dict[int, Iterable[Step]]) -> FakeBackend:
    return FakeBackend(lambda prompt, _: scripts[prompt[0]])


async def run_all(backend: FakeBackend, count: int) -> list[GenerationEvent]:
    async with GenerationGroup(backend, plans(count)) as group:
        return [event async for _, events in group for event in events]


async def no_tasks_left() -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_each_choice_keeps_its_order_whatever_the_others_do() -> None:
    backend = by_prompt({0: [5, Pause(0.01), 6, EOS], 1: [7, 8, EOS], 2: [Pause(0.005), 9, EOS]})
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    ends: list[int] = []
    async with GenerationGroup(backend, plans(3)) as group:
        async for index, [event] in group:
            if isinstance(event, GeneratedToken):
                assert index not in ends
                seen[index].append(event.token_id)
            else:
                assert event == GenerationEnd(FinishReason.STOP)
                ends.append(index)
    assert seen == {0: [5, 6, EOS], 1: [7, 8, EOS], 2: [9, EOS]}
    assert ends == [1, 2, 0]
    backend.assert_nothing_leaked()
    await no_tasks_left()


async def test_a_stopped_choice_is_cancelled_once_and_silent_while_others_go_on() -> None:
    backend = by_prompt({0: [5, 6, 7, 8, Hold()], 1: [9, Pause(0.01), EOS]})
    after_stop = []
    async with GenerationGroup(backend, plans(2)) as group:
        async for index, [event] in group:
            if group_stopped(backend):
                after_stop.append(index)
            elif index == 0 and isinstance(event, GeneratedToken):
                group.stop(0)
    assert after_stop
    assert set(after_stop) == {1}
    backend.assert_nothing_leaked()
    await no_tasks_left()


def group_stopped(backend: FakeBackend) -> bool:
    return backend.generations[0].num_cancels == 1


async def test_leaving_early_cancels_what_has_not_ended() -> None:
    backend = by_prompt({0: [EOS], 1: [Hold()], 2: [5, Hold()]})
    async with GenerationGroup(backend, plans(3)) as group:
        async for index, [event] in group:
            if index == 0 and isinstance(event, GenerationEnd):
                break
    assert [g.num_cancels for g in backend.generations] == [0, 1, 1]
    backend.assert_nothing_leaked()
    await no_tasks_left()


async def test_being_cancelled_while_waiting_cancels_every_generation() -> None:
    backend = FakeBackend(always(Hold()))

    task = asyncio.create_task(run_all(backend, 4))
    await asyncio.sleep(0.02)
    assert [g.begun for g in backend.generations] == [True] * 4
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [g.num_cancels for g in backend.generations] == [1] * 4
    backend.assert_nothing_leaked()
    await no_tasks_left()


async def test_if_one_cannot_start_none_runs() -> None:
    backend = FakeBackend(always(Hold()))

    def script(prompt: tuple[int, ...], _: GenerationParams) -> Iterable[Step]:
        if prompt == (2,):
            raise PeerLostError("the gpu-engine is gone")
        return [Hold()]

    backend.script = script
    with pytest.raises(ApiError, match="gpu-engine is gone") as caught:
        async with GenerationGroup(backend, plans(3)):
            pass
    assert caught.value.status == 503
    assert [g.num_cancels for g in backend.generations] == [1, 1]
    await no_tasks_left()


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (Break(PeerLostError("the cpu-engine is gone")), 503),
        (Break(ValueError("a mistake of ours")), 500),
        (Break(None), 500),
    ],
)
async def test_a_generation_that_breaks_ends_the_request(step: Step, status: int) -> None:
    cases: list[dict[int, Iterable[Step]]] = [{0: [Hold()], 1: [5, step]}, {0: [5, step]}]
    for scripts in cases:
        backend = by_prompt(scripts)
        with pytest.raises(ApiError) as caught:
            await run_all(backend, len(scripts))
        assert caught.value.status == status
        assert "mistake of ours" not in caught.value.message
        backend.assert_nothing_leaked()
        await no_tasks_left()


async def test_what_breaks_after_it_was_stopped_concerns_nobody() -> None:
    backend = by_prompt({0: [5, Break(None)], 1: [Pause(0.01), EOS]})
    ends = []
    async with GenerationGroup(backend, plans(2)) as group:
        async for index, [event] in group:
            if index == 0:
                group.stop(0)
            if isinstance(event, GenerationEnd):
                ends.append(index)
    assert ends == [1]
    backend.assert_nothing_leaked()


@pytest.mark.parametrize("count", [1, 2])
async def test_an_abort_is_raised_after_what_had_arrived(count: int) -> None:
    backend = by_prompt({0: [5, Hold()], 1: [Hold()]})
    async with GenerationGroup(backend, plans(count)) as group:
        await asyncio.sleep(0.02)
        group.abort(unavailable("shutting down"))
        group.abort(unavailable("said once more"))
        index, [event] = await anext(group)
        assert (index, isinstance(event, GeneratedToken)) == (0, True)
        with pytest.raises(ApiError, match="shutting down"):
            await anext(group)
    backend.assert_nothing_leaked()
    await no_tasks_left()


async def test_a_single_choice_that_waits_is_aborted_or_cancelled_at_once() -> None:
    for abort in (True, False):
        backend = FakeBackend(always(5, Hold()))
        group = GenerationGroup(backend, plans(1))

        async def read(group: GenerationGroup = group) -> None:
            async with group:
                async for _ in group:
                    pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.02)
        if abort:
            group.abort(unavailable("shutting down"))
            with pytest.raises(ApiError, match="shutting down"):
                await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert backend.generations[0].num_cancels == 1
        backend.assert_nothing_leaked()
        await no_tasks_left()


async def test_a_single_choice_that_was_stopped_yields_nothing_more() -> None:
    backend = FakeBackend(always(5, 6, 7, EOS))
    seen = []
    async with GenerationGroup(backend, plans(1)) as group:
        async for index, [event] in group:
            seen.append(event)
            group.stop(index)
    assert len(seen) == 1
    backend.assert_nothing_leaked()


async def test_an_engines_own_end_is_passed_on() -> None:
    backend = by_prompt({0: [End(FinishReason.ERROR, "out of memory")]})
    assert await run_all(backend, 1) == [GenerationEnd(FinishReason.ERROR, "out of memory")]
    backend.assert_nothing_leaked()
