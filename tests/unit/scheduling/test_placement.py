"""Where requests go: what `auto` promises, and what fixed placements depend on."""

from dataclasses import replace

import pytest

from dualpace.core.errors import SettingsError
from dualpace.core.request import Request, SamplingParams
from dualpace.scheduling.cpu import HostLimits
from dualpace.scheduling.gpu_sequence import GpuSequence
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.placement import RandomMoves, placement_from_text
from dualpace.testing.two_schedulers import TwoSchedulers


def make_node(
    *, device_blocks: int = 100, host_blocks: int = 400, max_running: int = 16
) -> TwoSchedulers:
    gpu = GpuLimits(
        num_blocks=device_blocks, block_size=4, max_running=max_running, token_budget=64
    )
    host = HostLimits(
        num_blocks=host_blocks, block_size=4, num_slots=64, max_batch=64, max_blocks_per_sequence=64
    )
    return TwoSchedulers(gpu, host, placement_from_text("auto"))


def make_request(request_id: int, prompt: int, new: int, seed: int = 0) -> Request:
    return Request(
        request_id=request_id,
        gateway_id=1,
        prompt_tokens=prompt,
        max_tokens=new,
        sampling=SamplingParams(seed=seed),
        arrival_s=float(request_id),
    )


def crowded_node() -> TwoSchedulers:
    """A node with more requests than its device holds, until the first half of them ends."""
    node = make_node()
    for request_id in range(16):
        node.submit(make_request(request_id, prompt=40, new=30 if request_id < 8 else 100))
    return node


def test_a_few_requests_stay_on_the_device() -> None:
    node = make_node()
    for request_id in range(4):
        node.submit(make_request(request_id, prompt=20, new=30))
    for _ in range(20):
        node.round()
        assert not node.gpu.state.away
    node.run_to_end()


def test_what_the_device_has_no_room_for_goes_to_the_host_at_once() -> None:
    """Nobody waits while one side has room, and the device keeps room for prefills."""
    node = make_node()
    for request_id in range(20):
        node.submit(make_request(request_id, prompt=40, new=200))
    for _ in range(40):
        node.round()
    assert not node.gpu.state.waiting
    assert len(node.gpu.state.away) > 10
    assert len(node.gpu.state.running) >= 4
    assert node.gpu.state.preemptions == 0


def test_requests_come_back_when_the_device_has_room_and_stay() -> None:
    """A steady crowd settles: no request goes back and forth."""
    node = crowded_node()
    moves = 0
    recalled_when_idle = False
    while node.gpu.state.sequences or node.host.num_sequences:
        before = {s.request_id for s in node.gpu.state.away}
        node.round()
        after = {s.request_id for s in node.gpu.state.away}
        moves += len(before ^ after)
        recalled_when_idle |= bool(before - after) and not node.gpu.state.waiting
    assert recalled_when_idle
    assert moves <= 2 * 16


def test_a_request_that_was_called_back_does_not_turn_round() -> None:
    """It would have waited for nothing: prompts may come while it is on its way."""
    node = crowded_node()
    came_back: dict[int, int] = {}
    turned_round, arrived = 0, 0
    for iteration in range(400):
        if iteration > 40 and iteration % 3 == 0:
            node.submit(make_request(100 + iteration, prompt=24, new=1))
        waiting = {s.request_id: s.num_tokens for s in node.gpu.state.waiting if s.kv_on_host}
        came_back |= waiting
        node.gpu_step()
        for request_id, tokens in list(came_back.items()):
            sequence = node.gpu.state.sequences.get(request_id)
            if sequence is not None and sequence in node.gpu.state.away:
                turned_round += sequence.num_tokens == tokens
                del came_back[request_id]
            elif sequence is None or sequence.num_tokens > tokens:
                arrived += 1
                del came_back[request_id]
        while node.to_host:
            node.deliver_to_host()
        if iteration % 4 == 3:
            node.host_end()
            node.host_begin()
        while node.to_gpu:
            node.deliver_to_gpu()
    assert arrived > 3
    assert turned_round == 0


def test_requests_on_their_way_back_count_when_more_are_called() -> None:
    """The device keeps its headroom when all of them have arrived."""
    node = crowded_node()
    most = 0
    while node.gpu.state.sequences or node.host.num_sequences:
        node.gpu_step()
        state = node.gpu.state
        most = max(most, state.recalls_in_flight)
        if state.recalls_in_flight:
            assert state.free_device_blocks - state.recalled_blocks >= (0.2 + 0.1) * 100
        node.round()
    assert most == 2


def test_a_nearly_full_device_moves_its_youngest_out_instead_of_recomputing() -> None:
    node = make_node(device_blocks=60)
    for request_id in range(4):
        node.submit(make_request(request_id, prompt=40, new=100))
    left: list[int] = []
    for _ in range(90):
        before = {s.request_id for s in node.gpu.state.away}
        node.round()
        left.extend({s.request_id for s in node.gpu.state.away} - before)
    assert node.gpu.state.preemptions == 0
    assert left[-1] > 0  # the oldest stayed
    assert 0 in {s.request_id for s in node.gpu.state.running}
    node.run_to_end()


def test_a_mover_misses_no_iteration() -> None:
    """It decodes while it is copied, and the host has it when that iteration ends."""
    node = make_node(device_blocks=60)
    for request_id in range(4):
        node.submit(make_request(request_id, prompt=40, new=100))
    moved = 0
    for _ in range(90):
        running = {s.request_id for s in node.gpu.state.running}
        tokens = {k: len(r.tokens) for k, r in node.received.items()}
        plan = node.gpu_step()
        for copy in plan.copies_out:
            moved += 1
            assert copy.request_id in running
            assert len(node.received[copy.request_id].tokens) == tokens[copy.request_id] + 1
            assert copy.request_id in {s.request_id for s in node.gpu.state.away}
        node.host_round()
    assert moved > 1
    node.run_to_end()


def test_those_in_a_hurry_leave_the_device_last_and_come_back_first() -> None:
    node = make_node(device_blocks=60)
    hasty = 3
    for request_id in range(4):
        request = make_request(request_id, prompt=40, new=100)
        target_s = 0.05 if request_id == hasty else 0.5 if request_id == 0 else None
        node.submit(replace(request, token_target_s=target_s))
    left: list[int] = []
    for _ in range(90):
        before = {s.request_id for s in node.gpu.state.away}
        node.round()
        left.extend({s.request_id for s in node.gpu.state.away} - before)
    assert left
    assert left[0] in {1, 2}
    assert hasty not in left
    node.run_to_end()
    view = make_node().gpu.state
    away = [
        GpuSequence(replace(make_request(i, 4, 9), token_target_s=t), [1] * 5)
        for i, t in enumerate([None, 0.5, 0.1])
    ]
    recalled = placement_from_text("auto").recall(away, view)
    assert recalled is away[2]


def test_without_a_host_everything_runs_on_the_device() -> None:
    node = make_node(device_blocks=40)
    node.gpu.host_lost()
    node.to_gpu.clear()
    for request_id in range(6):
        node.submit(make_request(request_id, prompt=40, new=20))
    for _ in range(400):
        node.gpu_step()
    assert not node.gpu.state.sequences
    assert all(r.finish is not None for r in node.received.values())


@pytest.mark.parametrize("seed", range(5))
def test_random_moves_depend_on_the_request_alone_and_go_both_ways(seed: int) -> None:
    def bounds(request_id: int, sampling_seed: int) -> list[int | None]:
        request = make_request(request_id, prompt=10, new=60, seed=sampling_seed)
        placement = RandomMoves(seed)
        result = []
        sequence = GpuSequence(request, list(range(10)))
        while sequence.num_tokens < 69:
            sequence.tokens.append(0)
            result.append(placement.return_at(sequence))
        return result

    first = bounds(1, 0)
    assert first == bounds(2, 0)
    assert first != bounds(1, 1)
    assert len({b for b in first if b is not None}) > 5


@pytest.mark.parametrize(
    "text", ["", "gpu:1", "random", "random:", "random:x", "random:-1", "Auto"]
)
def test_nonsense_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(SettingsError, match="is not one of auto, gpu, cpu, random:<seed>"):
        placement_from_text(text)
