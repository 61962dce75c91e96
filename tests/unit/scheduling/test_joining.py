"""Who comes in the middle of a host iteration: joins it if that is early, and waits otherwise."""

import pytest

from dualpace.core.messages import Commit, Reserve
from dualpace.core.request import Request
from dualpace.scheduling.cpu import HostLimits, HostScheduler
from dualpace.scheduling.host_iteration import MOST_NEWCOMERS
from dualpace.scheduling.plan import Sample


def make_host(num_blocks: int = 64, max_batch: int = 64) -> HostScheduler:
    limits = HostLimits(
        num_blocks=num_blocks,
        block_size=4,
        num_slots=64,
        max_batch=max_batch,
        max_blocks_per_sequence=8,
    )
    host = HostScheduler(limits)
    host.device_joined()
    return host


def commit(host: HostScheduler, request_id: int, num_tokens: int) -> None:
    request = Request(
        request_id=request_id, gateway_id=1, prompt_tokens=1, max_tokens=20, arrival_s=0.0
    )
    host.commit(Commit(request, num_tokens), last_token=request_id)


def come(host: HostScheduler, *request_ids: int, num_tokens: int = 2) -> None:
    for request_id in request_ids:
        host.reserve(Reserve(request_id, num_tokens))
        commit(host, request_id, num_tokens)


def test_the_early_join_and_get_their_token_with_the_others() -> None:
    host = make_host()
    come(host, 1)
    assert [row.request_id for row in host.schedule(0.0).rows] == [1]
    assert host.join(0.1) == ()
    come(host, 2, 3)
    joined = host.join(0.1)
    assert [(row.request_id, row.position, row.token_id) for row in joined] == [
        (2, 1, 2),
        (3, 1, 3),
    ]
    assert host.join(0.1) == (), "they have joined already"
    host.cancel(2)  # waits for the end, as for any row of the plan
    host.apply([Sample(request_id, 7) for request_id in (1, 2, 3)])
    host.check_integrity()
    assert sorted(row.request_id for row in host.schedule(1.0).rows) == [1, 3]


@pytest.mark.parametrize(("behind", "joins"), [(0.3, True), (0.34, False), (0.9, False)])
def test_the_late_wait(behind: float, joins: bool) -> None:
    host = make_host()
    come(host, 1)
    host.schedule(0.0)
    come(host, 2)
    assert bool(host.join(behind)) is joins


@pytest.mark.parametrize(("behind", "joins"), [(0.3, True), (0.6, True), (0.7, False)])
def test_what_turned_round_may_come_later(behind: float, joins: bool) -> None:
    """It has waited since the iteration began: without that it would wait for two."""
    host = make_host()
    come(host, 1, 2, 3)
    host.recall(2)
    host.schedule(0.0)
    come(host, 4)
    commit(host, 2, 2)
    assert [row.request_id for row in host.join(behind)] == (
        [2] if behind > 0.4 else [4, 2]
    ) * joins
    host.check_integrity()


def test_who_turned_round_is_as_others_once_it_has_its_token() -> None:
    host = make_host()
    come(host, 1, 2)
    host.recall(2)
    commit(host, 2, 2)
    host.schedule(0.0)
    host.apply([Sample(1, 7), Sample(2, 7)])
    host.recall(2)
    host.schedule(1.0)
    come(host, 3)
    assert host.join(0.6) == ()


def test_what_is_computed_again_is_bounded_for_all_together() -> None:
    host = make_host()
    come(host, 1)
    host.schedule(0.0)
    repeated, request_id = 0.0, 2
    for _ in range(20):
        come(host, request_id)
        if host.join(0.06):
            repeated += 0.06
        request_id += 1
    assert 0.24 < repeated <= 1 / 3
    host.apply([Sample(i, 7) for i in range(1, 2 + round(repeated / 0.06))])
    assert len(host.schedule(1.0).rows) == 21
    come(host, request_id)
    assert len(host.join(0.1)) == 1, "every iteration anew"


def test_no_more_join_than_there_is_room_for() -> None:
    host = make_host()
    come(host, 1)
    host.schedule(0.0)
    come(host, *range(2, 22))
    assert len(host.join(0.1)) == MOST_NEWCOMERS
    assert host.join(0.1) == ()
    host = make_host(max_batch=3)
    come(host, 1)
    host.schedule(0.0)
    come(host, 2, 3, 4)
    assert len(host.join(0.1)) == 2


def test_nobody_joins_an_iteration_that_is_not_under_way() -> None:
    host = make_host()
    come(host, 1)
    assert host.join(0.1) == ()
    host.schedule(0.0)
    host.apply([Sample(1, 7)])
    come(host, 2)
    assert host.join(0.1) == ()


def test_nobody_is_evicted_for_a_newcomer() -> None:
    host = make_host(num_blocks=4)
    come(host, 1, num_tokens=4)
    host.reserve(Reserve(2, 4))
    host.reserve(Reserve(3, 4))
    host.schedule(0.0)  # takes the last block for the next token of 1
    commit(host, 2, 4)
    assert host.free_blocks == 0
    assert host.join(0.1) == ()
    assert host.evictions == 0
    host.check_integrity()
