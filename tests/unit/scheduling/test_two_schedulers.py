"""Both schedulers together, under any interleaving.

Nothing is lost, owned twice, leaked or left hanging.
"""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.core.request import FinishReason, Request
from dualpace.scheduling.cpu import HostLimits
from dualpace.scheduling.gpu_sequence import GpuSequence
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.placement import (
    GpuOnly,
    NodeView,
    Placement,
    Tier,
    placement_from_text,
)
from dualpace.testing.two_schedulers import TwoSchedulers

PLACEMENTS = ["gpu", "cpu", "auto", "random:0", "random:1"]


def make_node(
    placement: str | Placement,
    *,
    device_blocks: int = 16,
    host_blocks: int = 32,
    max_running: int = 4,
    token_budget: int = 16,
    slots: int = 8,
    max_batch: int = 8,
) -> TwoSchedulers:
    gpu = GpuLimits(
        num_blocks=device_blocks,
        block_size=4,
        max_running=max_running,
        token_budget=token_budget,
    )
    host = HostLimits(
        num_blocks=host_blocks,
        block_size=4,
        num_slots=slots,
        max_batch=max_batch,
        max_blocks_per_sequence=64,
    )
    if isinstance(placement, str):
        placement = placement_from_text(placement)
    return TwoSchedulers(gpu, host, placement)


def make_request(request_id: int, prompt: int = 5, new: int = 6, **more: object) -> Request:
    return Request(
        request_id=request_id,
        gateway_id=1,
        prompt_tokens=prompt,
        max_tokens=new,
        arrival_s=float(request_id),
        **more,  # type: ignore[arg-type]
    )


def assert_idle(node: TwoSchedulers) -> None:
    """Every block and slot is free on both sides."""
    node.check()
    assert node.gpu.state.free_device_blocks == node.gpu.state.total_device_blocks
    assert node.gpu.state.free_device_slots == node.gpu.state.total_device_slots
    assert node.host.free_blocks == node.host.limits.num_blocks
    assert node.host.free_slots == node.host.limits.num_slots


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_request_completes(placement: str) -> None:
    node = make_node(placement)
    requests = [make_request(i, prompt=3 + 5 * (i % 5), new=1 + 3 * (i % 4)) for i in range(12)]
    for request in requests:
        node.submit(request)
    node.run_to_end()
    for request in requests:
        node.assert_complete(request, FinishReason.LENGTH)
    assert_idle(node)


STEPS: dict[str, Callable[[TwoSchedulers], object]] = {
    "gpu": TwoSchedulers.gpu_step,
    "gpu_async": lambda node: node.gpu_step(finish_transfers=False),
    "gpu_begin": TwoSchedulers.gpu_begin,
    "transfers": TwoSchedulers.finish_transfers,
    "host": TwoSchedulers.host_step,
    "host_begin": TwoSchedulers.host_begin,
    "join_early": lambda node: node.host_join(0.1),
    "join_late": lambda node: node.host_join(0.3),
    "to_host": TwoSchedulers.deliver_to_host,
    "to_gpu": TwoSchedulers.deliver_to_gpu,
}
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 24))
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), SIZES),
        st.tuples(
            st.sampled_from([*STEPS, "cancel"]),
            st.tuples(st.integers(0, 30), st.just(0)),
        ),
    ),
    max_size=150,
)


@settings(max_examples=300, deadline=None)
@given(
    MOVES,
    st.sampled_from(PLACEMENTS),
    st.sampled_from([16, 20, 64]),
    st.sampled_from([17, 24, 64]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 3, 8]),
)
def test_any_interleaving_keeps_the_books_and_ends(
    moves: list[tuple[str, tuple[int, int]]],
    placement: str,
    device_blocks: int,
    host_blocks: int,
    max_running: int,
    max_batch: int,
) -> None:
    node = make_node(
        placement,
        device_blocks=device_blocks,
        host_blocks=host_blocks,
        max_running=max_running,
        max_batch=max_batch,
    )
    requests: list[Request] = []
    cancelled: set[int] = set()
    for move, (a, b) in moves:
        if move == "submit":
            requests.append(make_request(len(requests), prompt=a, new=b))
            node.submit(requests[-1])
        elif move != "cancel":
            STEPS[move](node)
        elif a < len(requests):
            cancelled.add(a)
            node.cancel(a)
        node.check()
    node.gpu_end()
    node.finish_transfers()
    node.host_end()
    node.run_to_end()
    for request in requests:
        if request.request_id in cancelled:
            assert node.received[request.request_id].finish is not None
        else:
            node.assert_complete(request, FinishReason.LENGTH)
    assert_idle(node)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_large_request_is_not_starved_by_small_ones_that_keep_coming(placement: str) -> None:
    node = make_node(placement, host_blocks=16)
    small = 0

    def submit_small() -> None:
        nonlocal small
        node.submit(make_request(1000 + small, prompt=4, new=8 + small % 5))
        small += 1

    for _ in range(3):
        submit_small()
    node.submit(make_request(100, prompt=52, new=8))
    for _ in range(200):
        node.round()
        if node.received[100].tokens:
            break
        while sum(r.finish is None for r in node.received.values()) < 4:
            submit_small()
    assert node.received[100].tokens
    node.run_to_end()
    assert_idle(node)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_request_as_long_as_memory_allows_completes(placement: str) -> None:
    """No reservation asks for more than the request can ever need."""
    node = make_node(placement, device_blocks=16, host_blocks=16)
    request = make_request(1, prompt=40, new=24)
    node.submit(request)
    node.run_to_end()
    node.assert_complete(request, FinishReason.LENGTH)
    assert_idle(node)


@pytest.mark.parametrize("placement", ["random:0", "random:1", "auto"])
def test_who_comes_back_amid_a_plan_is_in_the_next_one(placement: str) -> None:
    """Where its copy is complete by then, and nobody older waits for room."""
    node = make_node(placement, device_blocks=32)
    requests = [make_request(i, prompt=9 + 5 * (i % 4), new=24) for i in range(6)]
    for request in requests:
        node.submit(request)
    arrived = 0
    for _ in range(400):
        node.gpu_begin()
        node.host_round()
        running = {s.request_id for s in node.gpu.state.running}
        node.finish_transfers()
        amid = {s.request_id for s in node.gpu.state.running} - running
        node.gpu_end()
        rows = {row.request_id for row in node.gpu_begin().rows}
        alive = {s.request_id for s in node.gpu.state.running}
        assert amid & alive <= rows
        arrived += len(amid & rows)
        node.gpu_end()
        node.finish_transfers()
    assert arrived
    assert node.copies_amid_plans
    node.run_to_end()
    for request in requests:
        node.assert_complete(request, FinishReason.LENGTH)
    assert_idle(node)


def test_who_comes_back_amid_a_plan_does_not_overtake_an_older_one() -> None:
    class Directed(GpuOnly):
        tier = Tier.GPU

        def admit(self, sequence: GpuSequence, view: NodeView) -> Tier:
            del sequence, view
            return self.tier

    placement = Directed()
    node = make_node(placement)
    node.submit(make_request(3, prompt=17, new=20))
    node.round()
    placement.tier = Tier.HOST
    node.submit(make_request(5, prompt=9, new=40))
    while not node.gpu.state.away:
        node.round()
    placement.tier = Tier.GPU
    node.submit(make_request(1, prompt=55, new=4))  # more than is free
    node.gpu_begin()
    node.host.recall(5)
    node.host_round()
    assert [s.request_id for s in node.gpu.state.waiting] == [1, 5]
    assert node.copies_amid_plans == 0
    node.run_to_end()
    assert_idle(node)
