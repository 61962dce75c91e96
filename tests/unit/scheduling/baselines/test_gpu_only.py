"""The gpu-only baseline follows vLLM's rules: order, chunks, blocks, preemption, admission."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.messages import FinishEvent, Submit, TokenEvent
from dualpace.core.request import FinishReason, Request
from dualpace.scheduling.baselines.gpu_only import GpuOnlyScheduler
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.plan import GpuPlan, Sample


def make_scheduler(
    *, blocks: int = 32, max_running: int = 4, token_budget: int = 16, watermark: float = 0.0
) -> GpuOnlyScheduler:
    limits = GpuLimits(
        num_blocks=blocks, block_size=4, max_running=max_running, token_budget=token_budget
    )
    return GpuOnlyScheduler(limits, watermark=watermark)


def submit(scheduler: GpuOnlyScheduler, request_id: int, prompt: int, new: int = 20) -> None:
    request = Request(
        request_id=request_id,
        gateway_id=9,
        prompt_tokens=prompt,
        max_tokens=new,
        arrival_s=float(request_id),
    )
    scheduler.submit(Submit(request, (0,) * prompt))


def step(scheduler: GpuOnlyScheduler) -> GpuPlan:
    plan = scheduler.schedule(0.0)
    scheduler.apply(plan, [Sample(r.request_id, 0) for r in plan.rows if r.samples])
    scheduler.state.check_integrity()
    return plan


def shape(plan: GpuPlan) -> list[tuple[int, int, int]]:
    return [(row.request_id, row.start, len(row.tokens)) for row in plan.rows]


def test_a_running_prompt_comes_before_younger_decodes() -> None:
    """Order is that of admission; there is no decode phase that would go first."""
    scheduler = make_scheduler(token_budget=8)
    submit(scheduler, 1, prompt=20)
    submit(scheduler, 2, prompt=3)
    assert shape(step(scheduler)) == [(1, 0, 8)]
    assert shape(step(scheduler)) == [(1, 8, 8)]
    assert shape(step(scheduler)) == [(1, 16, 4), (2, 0, 3)]
    submit(scheduler, 3, prompt=9)
    assert shape(step(scheduler)) == [(1, 20, 1), (2, 3, 1), (3, 0, 6)]


def test_blocks_are_taken_for_this_iteration_only() -> None:
    scheduler = make_scheduler(blocks=10, token_budget=8)
    submit(scheduler, 1, prompt=32)
    step(scheduler)
    assert scheduler.state.free_device_blocks == 8


def test_a_prompt_is_admitted_only_if_it_fits_as_a_whole() -> None:
    scheduler = make_scheduler(blocks=10, token_budget=40)
    submit(scheduler, 1, prompt=12)
    step(scheduler)
    submit(scheduler, 2, prompt=29)  # 8 blocks, 7 free
    submit(scheduler, 3, prompt=4)
    assert shape(step(scheduler)) == [(1, 12, 1)]
    assert [s.request_id for s in scheduler.state.waiting] == [2, 3]


def test_the_watermark_binds_admission_alone() -> None:
    scheduler = make_scheduler(blocks=10, watermark=0.2)
    submit(scheduler, 1, prompt=16, new=23)
    submit(scheduler, 2, prompt=17)  # 5 blocks and 2 of watermark, 6 free
    for _ in range(23):
        assert [r.request_id for r in step(scheduler).rows] == [1]
    assert [r.request_id for r in step(scheduler).rows] == [2]


def test_the_youngest_is_preempted_and_nobody_is_admitted_in_that_iteration() -> None:
    scheduler = make_scheduler(blocks=6)
    submit(scheduler, 1, prompt=8)
    submit(scheduler, 2, prompt=8)
    submit(scheduler, 3, prompt=5)
    plan = step(scheduler)
    while not scheduler.state.preemptions:
        plan = step(scheduler)
    assert [s.request_id for s in scheduler.state.running] == [1, 2][: len(plan.rows)]
    waiting = [s.request_id for s in scheduler.state.waiting]
    assert waiting == sorted(waiting)
    assert all(s.computed == 0 for s in scheduler.state.waiting)


def test_rows_are_bounded() -> None:
    scheduler = make_scheduler(max_running=2)
    for request_id in (1, 2, 3):
        submit(scheduler, request_id, prompt=2)
    assert len(step(scheduler).rows) == 2


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=20),
    st.sampled_from([24, 30, 60]),
    st.sampled_from([4, 16, 100]),
)
def test_everything_ends_with_every_token_in_order(
    sizes: list[tuple[int, int]], blocks: int, budget: int
) -> None:
    scheduler = make_scheduler(blocks=blocks, token_budget=budget)
    for request_id, (prompt, new) in enumerate(sizes):
        submit(scheduler, request_id, prompt, new)
    positions: dict[int, list[int]] = defaultdict(list)
    ended: dict[int, FinishEvent] = {}
    for _ in range(20_000):
        if not scheduler.state.sequences:
            break
        plan = step(scheduler)
        assert 0 < plan.num_tokens <= budget
        for event in scheduler.drain().events:
            if isinstance(event, TokenEvent):
                positions[event.request_id].append(event.position)
            elif isinstance(event, FinishEvent):
                ended[event.request_id] = event
    for request_id, (prompt, new) in enumerate(sizes):
        assert ended[request_id].reason is FinishReason.LENGTH
        assert positions[request_id] == list(range(prompt, prompt + new))
