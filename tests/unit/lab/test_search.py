"""Searching for the highest sustained rate."""

import math
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from dualpace.lab.metrics import Metrics
from dualpace.lab.search import STEP, RateSearch, Targets


def node_with(limit: float, asked: list[float]) -> RateSearch:
    """A node whose ITL is above any target beyond `limit` requests a second."""

    def run(rate: float) -> Metrics:
        asked.append(rate)
        itl = 0.1 if rate <= limit else 5.0
        values: Any = SimpleNamespace(
            finished=1, requests=1, itl_p99_s=itl, tpot_p99_s=itl, ttft_p99_s=0.5
        )
        return cast("Metrics", values)

    return RateSearch(run)


@given(st.floats(0.6, 7.9))
def test_the_search_finds_the_limit_within_a_step(limit: float) -> None:
    asked: list[float] = []
    search = node_with(limit, asked)
    found = search.sustained(Targets(itl_p99_s=0.4))
    assert found <= limit + 1e-9
    assert limit - found <= STEP + 1e-9
    assert search.sustained(Targets(tpot_p99_s=0.4)) == found
    assert len(asked) == len(set(asked)) <= 9


def test_the_ends_of_the_range() -> None:
    assert node_with(0.1, []).sustained(Targets(itl_p99_s=0.4)) == 0.0
    assert node_with(math.inf, []).sustained(Targets(itl_p99_s=0.4)) == 8.0


def test_unfinished_requests_or_a_growing_queue_are_not_sustained() -> None:
    run = node_with(1.0, []).at(1.0)
    assert Targets(itl_p99_s=0.4).met_by(run)
    assert not Targets(ttft_p99_s=0.4).met_by(run)
    run.finished = 0  # type: ignore[misc]
    assert not Targets().met_by(run)
