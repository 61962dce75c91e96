"""Tokens of two engines, in any interleaving, come out in order, once each, with one end."""

import asyncio
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.messages import (
    FinishEvent,
    PromptLogprobs,
    StartEvent,
    TokenEvent,
    TokenLogprobs,
)
from dualpace.core.request import Engine, FinishReason, Request
from dualpace.gateway.engines.backend import (
    GeneratedToken,
    GenerationEnd,
    GenerationEvent,
    GenerationStart,
    ScoredPrompt,
)
from dualpace.gateway.engines.generation import NodeGeneration

FIRST = 10


def collect(generation: NodeGeneration) -> list[GenerationEvent]:
    async def drain() -> list[GenerationEvent]:
        return [event async for events in generation for event in events]

    return asyncio.run(asyncio.wait_for(drain(), 5))


def make_generation(abandon: Callable[[int], None] = lambda _: None) -> NodeGeneration:
    request = Request(request_id=2, gateway_id=1, prompt_tokens=FIRST, max_tokens=100)
    return NodeGeneration(request, tuple(range(FIRST)), abandon)


def token(position: int) -> TokenEvent:
    return TokenEvent(1, 2, position, position * 3)


@given(st.data())
def test_any_interleaving_of_two_ordered_streams_comes_out_in_order(data: st.DataObject) -> None:
    """As in a node: every position is sent by its owner, and handed-over ones perhaps twice."""
    count = data.draw(st.integers(1, 30))
    streams: dict[Engine, list[TokenEvent | FinishEvent]] = {Engine.GPU: [], Engine.CPU: []}
    owner = Engine.GPU
    for position in range(FIRST, FIRST + count):
        streams[owner].append(token(position))
        if data.draw(st.booleans()):
            owner = Engine.CPU if owner is Engine.GPU else Engine.GPU
            if data.draw(st.booleans()):
                streams[owner].append(token(position))  # said again by the new owner
    streams[owner].append(FinishEvent(1, 2, FIRST + count, FinishReason.LENGTH))
    generation = make_generation()
    while any(streams.values()):
        engine = data.draw(st.sampled_from([e for e, events in streams.items() if events]))
        generation.take(engine, streams[engine].pop(0))
    assert generation.done
    *tokens, end = collect(generation)
    assert [t.position for t in tokens if isinstance(t, GeneratedToken)] == list(
        range(FIRST, FIRST + count)
    )
    assert [t.token_id for t in tokens if isinstance(t, GeneratedToken)] == [
        p * 3 for p in range(FIRST, FIRST + count)
    ]
    assert end == GenerationEnd(FinishReason.LENGTH)


def test_a_token_said_again_counts_for_the_engine_that_made_it() -> None:
    generation = make_generation()
    repeated = TokenEvent(1, 2, FIRST, 5, repeat=True)
    generation.take(Engine.CPU, repeated)  # before the device's own word of it
    generation.take(Engine.GPU, token(FIRST))
    generation.take(Engine.CPU, token(FIRST + 1))
    generation.take(Engine.CPU, FinishEvent(1, 2, FIRST + 2, FinishReason.STOP))
    *tokens, _ = collect(generation)
    engines = [t.engine for t in tokens if isinstance(t, GeneratedToken)]
    assert engines == [Engine.GPU, Engine.CPU]


def test_an_end_waits_for_the_tokens_before_it() -> None:
    generation = make_generation()
    generation.take(Engine.CPU, FinishEvent(1, 2, FIRST + 2, FinishReason.STOP))
    generation.take(Engine.CPU, token(FIRST + 1))
    done = [generation.done]
    generation.take(Engine.GPU, token(FIRST))
    done.append(generation.done)
    assert done == [False, True]
    assert len(collect(generation)) == 3


def test_an_error_does_not_wait() -> None:
    generation = make_generation()
    generation.take(Engine.CPU, token(FIRST + 1))
    generation.take(Engine.GPU, FinishEvent(1, 2, FIRST, FinishReason.ERROR, "why"))
    assert collect(generation) == [GenerationEnd(FinishReason.ERROR, "why")]


def test_cancelling_tells_the_engines_once_and_ends_the_stream() -> None:
    told: list[int] = []
    generation = make_generation(told.append)
    generation.take(Engine.GPU, token(FIRST))
    generation.cancel()
    generation.cancel()
    generation.take(Engine.GPU, token(FIRST + 1))
    assert told == [2]
    events = collect(generation)
    assert events[-1] == GenerationEnd(FinishReason.CANCELLED)
    assert len(events) == 2


def test_cancelling_after_the_end_is_nothing() -> None:
    told: list[int] = []
    generation = make_generation(told.append)
    generation.take(Engine.GPU, token(FIRST))
    generation.take(Engine.GPU, FinishEvent(1, 2, FIRST + 1, FinishReason.STOP))
    generation.cancel()
    assert told == []


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=12))
def test_scores_of_a_prompt_computed_again_come_out_once(chunks: list[tuple[int, int]]) -> None:
    """However chunks overlap, positions come in order and once; what leaves a gap is no chunk."""
    generation = make_generation()
    known = 1
    for start, length in chunks:
        tokens = tuple(TokenLogprobs(-float(p), ()) for p in range(start, start + length))
        generation.take(Engine.GPU, PromptLogprobs(1, 2, start, tokens))
        if start <= known:
            known = max(known, start + length)
    generation.take(Engine.GPU, FinishEvent(1, 2, FIRST, FinishReason.LENGTH))
    *scored, _ = collect(generation)
    positions: list[float] = []
    for event in scored:
        assert isinstance(event, ScoredPrompt)
        assert event.start == len(positions) + 1
        positions.extend(-entry.chosen for entry in event.tokens)
    assert positions == list(range(1, known))


def test_a_start_is_told_once_though_an_engine_that_came_back_begins_again() -> None:
    generation = make_generation()
    generation.take(Engine.GPU, StartEvent(1, 2, 0.5))
    generation.take(Engine.GPU, token(FIRST))
    generation.take(Engine.GPU, StartEvent(1, 2, 9.0))
    generation.take(Engine.GPU, FinishEvent(1, 2, FIRST + 1, FinishReason.STOP))
    starts = [e for e in collect(generation) if isinstance(e, GenerationStart)]
    assert starts == [GenerationStart(0.5)]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=5))
def test_what_is_there_comes_together_within_bounds_and_the_end_by_itself(
    counts: list[int],
) -> None:
    async def read() -> None:
        generation = make_generation()
        position = FIRST
        for count in counts:
            for _ in range(count):
                generation.take(Engine.GPU, token(position))
                position += 1
            left = count
            while left:
                events = await anext(generation)
                assert len(events) == min(left, 64)
                left -= len(events)
        generation.take(Engine.GPU, token(position))
        generation.take(Engine.GPU, FinishEvent(1, 2, position + 1, FinishReason.LENGTH))
        [last] = await anext(generation)
        assert isinstance(last, GeneratedToken)
        assert await anext(generation) == [GenerationEnd(FinishReason.LENGTH)]
        assert await anext(generation, None) is None

    asyncio.run(asyncio.wait_for(read(), 5))


def test_a_reader_that_is_cancelled_while_it_waits_loses_nothing() -> None:
    async def read() -> None:
        generation = make_generation()
        waiting = asyncio.ensure_future(anext(generation))
        await asyncio.sleep(0)
        generation.take(Engine.GPU, token(FIRST))
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        [event] = await anext(generation)
        assert isinstance(event, GeneratedToken)

    asyncio.run(asyncio.wait_for(read(), 5))
