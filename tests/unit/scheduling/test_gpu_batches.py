"""What an iteration of the gpu-engine holds: chunks, budgets, order, preemption."""

import pytest

from dualpace.core.messages import (
    FinishEvent,
    Release,
    ReturnCause,
    Returned,
    StartEvent,
    Submit,
    TokenEvent,
)
from dualpace.core.request import FinishReason, Request
from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.placement import GpuOnly
from dualpace.scheduling.plan import Failure, GpuPlan, Sample


def make_scheduler(
    *, blocks: int = 32, max_running: int = 4, token_budget: int = 16
) -> GpuScheduler:
    limits = GpuLimits(
        num_blocks=blocks, block_size=4, max_running=max_running, token_budget=token_budget
    )
    return GpuScheduler(limits, GpuOnly())


def submit(
    scheduler: GpuScheduler,
    request_id: int,
    prompt: int,
    *,
    new: int = 20,
    stop: tuple[int, ...] = (),
    due_after_s: float = 0.0,
    priority: int = 0,
) -> None:
    request = Request(
        request_id=request_id,
        gateway_id=9,
        prompt_tokens=prompt,
        max_tokens=new,
        stop_token_ids=stop,
        arrival_s=float(request_id),
        first_token_target_s=due_after_s,
        priority=priority,
    )
    scheduler.submit(Submit(request, tuple(range(prompt))))


def step(scheduler: GpuScheduler, token: int = 7, now: float = 0.0) -> GpuPlan:
    plan = scheduler.schedule(now)
    scheduler.apply(plan, [Sample(row.request_id, token) for row in plan.rows if row.samples])
    scheduler.state.check_integrity()
    return plan


def shape(plan: GpuPlan) -> list[tuple[int, int, int]]:
    return [(row.request_id, row.start, len(row.tokens)) for row in plan.rows]


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 1, prompt=40)
    chunks = [shape(step(scheduler))[0] for _ in range(3)]
    assert chunks == [(1, 0, 16), (1, 16, 16), (1, 32, 8)]
    assert shape(step(scheduler)) == [(1, 40, 1)]


def test_only_the_last_chunk_samples() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 1, prompt=20)
    assert [row.samples for _ in range(2) for row in step(scheduler).rows] == [
        False,
        True,
    ]


def test_decodes_are_never_displaced_by_prefills() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 2, prompt=4)
    step(scheduler)
    submit(scheduler, 1, prompt=64)  # older, and longer than any budget
    for _ in range(4):
        plan = step(scheduler)
        assert shape(plan)[0][0] == 2
        assert plan.num_tokens == 16


def test_prompts_share_an_iteration_as_far_as_the_budget_goes() -> None:
    scheduler = make_scheduler()
    for request_id in (1, 2, 3):
        submit(scheduler, request_id, prompt=7)
    assert shape(step(scheduler)) == [(1, 0, 7), (2, 0, 7), (3, 0, 2)]
    assert shape(step(scheduler)) == [(1, 7, 1), (2, 7, 1), (3, 2, 5)]


def test_requests_are_admitted_in_order_of_arrival() -> None:
    """A small younger one does not pass an older one that does not fit yet."""
    scheduler = make_scheduler(blocks=8)
    submit(scheduler, 1, prompt=16)
    step(scheduler)
    submit(scheduler, 2, prompt=20)
    submit(scheduler, 3, prompt=2)
    assert shape(step(scheduler)) == [(1, 16, 1)]
    assert [s.request_id for s in scheduler.state.waiting] == [2, 3]


def test_of_one_priority_what_is_due_first_goes_first() -> None:
    scheduler = make_scheduler(max_running=1)
    submit(scheduler, 1, prompt=2, new=1, due_after_s=9.0)
    submit(scheduler, 2, prompt=2, new=1, due_after_s=5.0)
    submit(scheduler, 3, prompt=2, new=1, due_after_s=2.0)
    submit(scheduler, 4, prompt=2, new=1, due_after_s=99.0, priority=-1)
    assert [step(scheduler).rows[0].request_id for _ in range(4)] == [4, 3, 2, 1]


def test_the_start_of_a_request_is_told_once_and_before_its_tokens() -> None:
    scheduler = make_scheduler(blocks=4)
    submit(scheduler, 1, prompt=7)
    submit(scheduler, 2, prompt=7)
    step(scheduler, now=5.0)
    while not scheduler.state.preemptions:
        step(scheduler, now=6.0)
    scheduler.cancel(1)
    step(scheduler, now=7.0)  # the other is computed anew
    events = scheduler.drain().events
    starts = [e for e in events if isinstance(e, StartEvent)]
    assert starts == [StartEvent(9, 1, 4.0), StartEvent(9, 2, 3.0)]
    first_tokens = [
        next(e for e in events if isinstance(e, TokenEvent) and e.request_id == i) for i in (1, 2)
    ]
    assert all(events.index(s) < events.index(t) for s, t in zip(starts, first_tokens, strict=True))


def test_a_prompt_is_worth_an_answer_and_a_decode_its_token() -> None:
    scheduler = make_scheduler(token_budget=16)
    submit(scheduler, 1, prompt=40, new=8)
    answer = scheduler.state.answers.mean
    chunks = [step(scheduler).worth for _ in range(3)]
    assert chunks == pytest.approx([answer * 16 / 40, answer * 16 / 40, answer * 8 / 40 + 1])
    assert step(scheduler).worth == 1.0


def test_prompts_are_worth_nothing_more_while_it_is_room_that_all_wait_for() -> None:
    scheduler = make_scheduler(blocks=12, max_running=4)
    for request_id in range(200):
        submit(scheduler, request_id, prompt=20, new=24)
    over_samples = []
    for _ in range(300):
        plan = step(scheduler)
        if any(row.start < 20 for row in plan.rows):
            over_samples.append(plan.worth - sum(row.samples for row in plan.rows))
    assert over_samples[0] > 10.0
    assert 0.0 <= max(over_samples[-5:]) < 0.3 * over_samples[0]


def test_no_more_run_than_there_are_slots() -> None:
    scheduler = make_scheduler(max_running=2)
    for request_id in (1, 2, 3):
        submit(scheduler, request_id, prompt=2)
    assert len(step(scheduler).rows) == 2


def test_the_youngest_is_preempted_and_recomputed_whole() -> None:
    scheduler = make_scheduler(blocks=4)
    submit(scheduler, 1, prompt=7)
    submit(scheduler, 2, prompt=7)
    while not scheduler.state.preemptions:
        step(scheduler)
    assert [s.request_id for s in scheduler.state.running] == [1]
    victim = scheduler.state.waiting[0]
    assert (victim.request_id, victim.computed) == (2, 0)
    known = victim.num_tokens
    scheduler.cancel(1)
    plan = step(scheduler)
    assert plan.rows[0].tokens == (*range(7), *([7] * (known - 7)))


def test_a_stop_token_and_a_length_end_a_request() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 1, prompt=3, stop=(5,))
    submit(scheduler, 2, prompt=3, new=1)
    step(scheduler, token=5)
    events = scheduler.drain().events
    ends = {e.request_id: (e.reason, e.end_position) for e in events if isinstance(e, FinishEvent)}
    assert ends == {1: (FinishReason.STOP, 4), 2: (FinishReason.LENGTH, 4)}
    assert [e.position for e in events if isinstance(e, TokenEvent)] == [3, 3]
    assert scheduler.state.free_device_blocks == 32


def test_a_failed_row_ends_alone() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 1, prompt=3)
    submit(scheduler, 2, prompt=3)
    plan = scheduler.schedule(0.0)
    scheduler.apply(plan, [Failure(1, "not finite"), Sample(2, 4)])
    events = scheduler.drain().events
    assert FinishEvent(9, 1, 3, FinishReason.ERROR, "not finite") in events
    assert TokenEvent(9, 2, 3, 4) in events
    assert [s.request_id for s in scheduler.state.running] == [2]


def test_a_gateway_that_left_takes_its_requests_along() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 1, prompt=3)
    step(scheduler)
    submit(scheduler, 2, prompt=40)
    scheduler.cancel_gateway(8)
    assert len(scheduler.state.sequences) == 2
    scheduler.cancel_gateway(9)
    assert not scheduler.state.sequences
    assert scheduler.state.free_device_blocks == 32


@pytest.mark.parametrize("budget", [4, 5, 16, 1000])
def test_no_iteration_exceeds_the_budget(budget: int) -> None:
    scheduler = make_scheduler(token_budget=budget)
    for request_id in range(8):
        submit(scheduler, request_id, prompt=3 + 5 * request_id, new=6)
    iterations = 0
    while scheduler.state.sequences:
        assert 0 < step(scheduler).num_tokens <= budget
        iterations += 1
        assert iterations < 1000


def test_what_the_host_gives_back_of_a_request_that_is_gone_is_released() -> None:
    scheduler = make_scheduler()
    scheduler.host_event(Returned(5, ReturnCause.RECALLED, 9, (1,), (2, 3)))
    scheduler.host_event(Returned(6, ReturnCause.EVICTED, 9, (1,), ()))  # holds nothing
    assert scheduler.drain().commands == (Release(5),)
