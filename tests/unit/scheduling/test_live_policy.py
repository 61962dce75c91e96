"""Routing learns: from wrong profiles, new profiles, noise and outliers."""

import dataclasses
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.assist import CLOSED, AssistTerms
from dualpace.scheduling.cell_correction import CellCorrection
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.host_policy import UNLIMITED, Unprofiled
from dualpace.scheduling.live_policy import LivePolicy
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts
from dualpace.testing.skewed_profiles import skewed

TRUE = preset_profile("rtx-4090", "xeon-4510-120", "llama-3.1-8b")
TRUTH = RouteCosts(NodeCosts(TRUE))
IDLE = AssistTerms(open=True)
CELLS = [(rows, context) for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256) for context in (128, 1024)]


def wrong(host: float, gpu: float) -> Profile:
    return skewed(TRUE, host=host, gpu=gpu)


def truth(route: Route, rows: int, context: int) -> float:
    return TRUTH.forecast(route, rows, rows * context, IDLE).host_s


def run(policy: LivePolicy, cells: Iterable[tuple[int, int]], noise: random.Random) -> None:
    for rows, context in cells:
        shape = policy.shape([context] * rows)
        measured = truth(shape.route, rows, context) * noise.uniform(0.9, 1.1)
        if noise.random() < 0.03:
            measured *= 20  # a hiccup
        policy.observe(shape, measured)


def check_choices(policy: LivePolicy) -> None:
    """The faster route in 95 % of cells, and nowhere one that is more than a tenth slower."""
    right = 0
    for rows, context in CELLS:
        chosen = policy.shape([context] * rows).route
        best = min((Route.HOST, Route.ASSIST), key=lambda r: truth(r, rows, context))
        assert truth(chosen, rows, context) <= 1.1 * truth(best, rows, context), (rows, context)
        right += chosen is best
    assert right >= 0.95 * len(CELLS)


@pytest.mark.parametrize(
    ("host", "gpu"),
    [(1, 1), (3, 1), (1 / 3, 1), (1, 3), (1, 1 / 3), (3, 3), (3, 1 / 3), (1 / 3, 3)],
)
def test_a_wrong_profile_is_mended_within_200_steps(host: float, gpu: float) -> None:
    noise = random.Random(5)
    policy = LivePolicy(wrong(host, gpu))
    policy.terms = IDLE
    run(policy, (noise.choice(CELLS) for _ in range(200)), noise)
    check_choices(policy)


@pytest.mark.parametrize("sync_ms", [0.0, 0.003])
def test_a_profile_that_forgets_a_part_of_each_call_is_mended(sync_ms: float) -> None:
    """What is added to a call counts where the device rules the pace, and nowhere else."""
    noise = random.Random(7)
    policy = LivePolicy(dataclasses.replace(TRUE, assist_sync_ms=sync_ms))
    policy.terms = IDLE
    run(policy, (noise.choice(CELLS) for _ in range(200)), noise)
    check_choices(policy)


def test_every_decision_has_a_reason() -> None:
    def go_on(iterations: int) -> None:
        for _ in range(iterations):
            shape = policy.shape([128] * 8)
            assert shape.forecast is not None
            policy.observe(shape, shape.forecast.host_s)

    even = truth(Route.ASSIST, 8, 128) / truth(Route.HOST, 8, 128)
    policy = LivePolicy(wrong(even, 1))  # a host as fast as the detour
    go_on(10)
    assert policy.decisions["closed"] == 10
    policy.terms = IDLE
    go_on(4000)
    assert sum(policy.decisions.values()) == 4010
    assert 0 < policy.decisions["probe"] < 30
    policy.terms = CLOSED
    before = dict(policy.decisions)
    go_on(100)
    assert policy.decisions == {**before, "closed": before["closed"] + 100}


def test_a_new_profile_holds_at_once_and_nothing_is_remembered() -> None:
    noise = random.Random(2)
    policy = LivePolicy(wrong(3, 1))
    policy.terms = IDLE
    run(policy, [(8, 128)] * 100, noise)
    policy.replace(TRUE)
    assert policy.gauges()["correction_host"] == policy.gauges()["correction_assist"] == 1.0
    assert policy.shape([128] * 8).route is Route.ASSIST
    assert policy.terms is IDLE


def test_a_profile_that_stays_wrong_raises_the_wish_for_a_new_one() -> None:
    noise = random.Random(3)
    for profile, wanted in ((wrong(3, 3), True), (TRUE, False)):
        policy = LivePolicy(profile)
        policy.terms = IDLE
        run(policy, [(64, 1024)] * 3000, noise)
        assert policy.profile_wanted is wanted


def test_admission_follows_measured_times() -> None:
    policy = LivePolicy(TRUE, itl_target_s=0.4)
    before = policy.open_kv_tokens(0, 0)
    for _ in range(20):
        policy.observe(policy.shape([1200] * 50), 2.0 * truth(Route.HOST, 50, 1200))
    assert policy.open_kv_tokens(0, 0) < 0.6 * before
    assert Unprofiled().open_kv_tokens(1000, 10**9) == UNLIMITED


@given(ratio=st.floats(0.1, 10.0), rows=st.integers(1, 500), context=st.integers(16, 4000))
def test_a_size_that_was_run_goes_by_its_own_outcomes_but_never_far(
    ratio: float, rows: int, context: int
) -> None:
    cells = CellCorrection(TRUTH, TRUTH)
    for route in (Route.HOST, Route.ASSIST):
        before = cells.forecast(route, rows, rows * context, IDLE)
        other = cells.forecast(route, 4 * rows, rows * context, IDLE)
        told = dataclasses.replace(before, plain_s=before.host_s)
        for hiccup in (1.0, 1.0, 30.0, 1.0, 1.0):
            cells.observe(told, ratio * hiccup * before.host_s)
        after = cells.forecast(route, rows, rows * context, IDLE)
        nearest = min(max(ratio, 1 / 1.5), 1.5)
        assert after.host_s == pytest.approx(nearest * before.host_s)
        assert cells.forecast(route, 4 * rows, rows * context, IDLE) == other
