"""The decoupling benchmark's clients, against a gateway: who made each token, and when it came."""

import os

from decoupling.load import poisson_arrivals, serve_all

from dualpace.lab.workload import Arrival
from dualpace.testing.fake_backend import Pause, always
from tests.unit.gateway.conftest import Serve

PAUSE_S = 0.2


def test_clients_note_when_each_token_came_and_from_whom(serve: Serve) -> None:
    server = serve(always(1000, 1001, 1002, Pause(PAUSE_S), 1003, 1004))
    arrivals = [Arrival(0, 0.0, 4, 5), Arrival(1, 0.3, 7, 5), Arrival(2, 0.3, 1, 5)]
    outcomes = serve_all(server.url, arrivals, os.sched_getaffinity(0)).outcomes
    assert [len(outcome.token_s) for outcome in outcomes] == [5, 5, 5]
    assert outcomes[1].sent_s - outcomes[0].sent_s >= 0.15
    for outcome in outcomes:
        assert outcome.on_host == [False, True, False, True, False]  # as the backend has it
        assert outcome.token_s == sorted(outcome.token_s)
        assert outcome.sent_s <= outcome.token_s[0]
        begin_s, end_s = outcome.host_gaps[1]
        assert (begin_s, end_s) == tuple(outcome.token_s[2:4])
        assert end_s - begin_s >= 0.9 * PAUSE_S
        assert len(outcome.host_gaps) == 2
        assert not outcome.host_resident


def test_a_seed_s_requests_are_the_same_every_time() -> None:
    assert poisson_arrivals(20, 4.0, 3) == poisson_arrivals(20, 4.0, 3)
    assert poisson_arrivals(20, 4.0, 3) != poisson_arrivals(20, 4.0, 4)
    times = [arrival.arrival_s for arrival in poisson_arrivals(20, 4.0, 3)]
    assert times == sorted(times)
