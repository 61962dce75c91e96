"""Waits for the host, counted from the engines' own records."""

import pytest

from dualpace.core.iteration_log import Iteration
from dualpace.lab.iterations import HostIterations, host_waits, over_predicted


def iteration(begin_s: float, end_s: float, *requests: int) -> Iteration:
    rows = len(requests)
    return Iteration(begin_s=begin_s, end_s=end_s, requests=requests, rows=rows, kv_tokens=9 * rows)


HOST = [iteration(n, n + 1, *requests) for n, requests in enumerate([[1], [1], [1, 2], [1, 2]])]
GPU = [iteration(0.0, 0.25, 2, 3), iteration(0.25, 0.5, 2, 3), iteration(0.5, 3.5, 3)]


def test_one_iteration_between_tokens_and_what_it_was_waited_for_after_a_move() -> None:
    waits = {(w.begin_s, w.end_s): w for w in host_waits(GPU, HOST)}
    assert set(waits) == {(1, 2), (2, 3), (3, 4), (0.5, 3)}  # the device's own gaps are none
    assert {w.iterations for w in waits.values() if not w.moved} == {1}
    moved = waits[0.5, 3]
    assert moved.moved
    assert moved.iterations == 3
    assert moved.seconds == 2.5
    # Two requests have gone from one token to the next in the same iteration.
    assert sum(1 for w in host_waits(GPU, HOST) if (w.begin_s, w.end_s) == (3, 4)) == 2


def test_an_interval_is_measured_in_the_iterations_of_its_time() -> None:
    table = HostIterations([iteration(0, 1, 1), iteration(1, 5, 1), iteration(6, 7, 1)])
    assert table.ended(0.5, 5) == 2
    assert table.in_iterations(1.5, 5) == pytest.approx(3.5 / 4)
    assert table.in_iterations(0.5, 5) == pytest.approx(4.5 / 2.5)
    assert table.in_iterations(5.2, 5.8) == 0.0
    # A host that stands still does not shorten what is waited.
    assert table.in_iterations(4, 7) == pytest.approx(3 / 2.5)


def test_what_two_iterations_do_not_explain_is_told() -> None:
    table = HostIterations([iteration(0, 1, 1), iteration(1, 2, 1), iteration(2, 4, 1)])
    assert table.beyond_two(0.75, 4) == pytest.approx(0.25)  # it came too late for the second
    assert table.beyond_two(1.5, 4) == 0.0
    assert table.beyond_two(2, 4) == 0.0


def test_iterations_last_until_the_next_one_unless_the_engine_was_idle() -> None:
    busy = [iteration(0, 1, 1), iteration(1.005, 2, 1), iteration(9, 10, 1)]
    assert over_predicted(busy, lambda i: 0.5 * i.rows) == pytest.approx((1.005 + 0.995) / 1.0)
    assert over_predicted(busy[:1], lambda i: 1.0) is None
