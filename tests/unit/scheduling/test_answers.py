"""The length of answers, learned without waiting for the long ones; and what follows from it."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.request import Request, SamplingParams
from dualpace.scheduling.answers import AnswerLength
from dualpace.scheduling.cpu import HostLimits
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.placement import Auto
from dualpace.testing.two_schedulers import TwoSchedulers


def tell(answers: AnswerLength, lengths: list[int]) -> None:
    for length in lengths:
        for position in range(length):
            answers.token(last=position == length - 1)


@pytest.mark.parametrize("mean", [3, 30, 300])
def test_the_mean_is_found_and_followed(mean: int) -> None:
    draw = random.Random(mean)
    answers = AnswerLength(memory=256)
    tell(answers, [max(1, round(draw.expovariate(1 / mean))) for _ in range(2000)])
    assert answers.mean == pytest.approx(mean, rel=0.2)
    tell(answers, [7] * 3000)
    assert answers.mean == pytest.approx(7, rel=0.05)


@given(st.integers(1, 200), st.integers(1, 5000))
def test_tokens_without_an_end_count_at_once(ended: int, running: int) -> None:
    """Of requests that come together, the short ones end first: that must not mislead."""
    answers = AnswerLength()
    tell(answers, [10] * ended)
    before = answers.mean
    for _ in range(running):
        answers.token(last=False)
    assert answers.mean > before
    assert before <= AnswerLength().mean


def node_of(memory_blocks: int, busy_tokens: int) -> TwoSchedulers:
    gpu = GpuLimits(
        num_blocks=memory_blocks,
        block_size=4,
        max_running=64,
        token_budget=256,
        busy_tokens=busy_tokens,
    )
    host = HostLimits(
        num_blocks=2000,
        block_size=4,
        num_slots=256,
        max_batch=256,
        max_blocks_per_sequence=64,
    )
    return TwoSchedulers(gpu, host, Auto())


def run(node: TwoSchedulers, new: Callable[[int], int]) -> list[int]:
    """Ask for 60 requests at once; returns whom the host got, in order."""
    for request_id in range(60):
        request = Request(
            request_id=request_id,
            gateway_id=1,
            prompt_tokens=40,
            max_tokens=new(request_id),
            sampling=SamplingParams(seed=0),
            arrival_s=float(request_id),
        )
        node.submit(request)
    seen: list[int] = []
    for _ in range(2000):
        if not node.gpu.state.sequences:
            break
        node.round()
        seen += [s.request_id for s in node.gpu.state.away if s.request_id not in seen]
    assert not node.gpu.state.sequences, "requests are stuck"
    return seen


def test_short_answers_stay_on_a_device_that_they_keep_busy() -> None:
    """4-token answers turn 800 tokens over in 4 iterations: room for 200 prompt tokens in each."""
    assert not any(request_id > 30 for request_id in run(node_of(200, 20), lambda _: 4))
    assert any(request_id > 30 for request_id in run(node_of(200, 2000), lambda _: 4))


def test_long_answers_go_to_the_host_also_after_short_ones() -> None:
    away = run(node_of(200, 20), lambda request_id: 4 if request_id < 30 else 150)
    assert len([request_id for request_id in away if request_id >= 30]) > 10
