"""Thresholds: true of the profile that they come from, and fit for the operator's objects."""

import itertools
import re

import pytest

from dualpace.core.assist import AssistTerms
from dualpace.profiler.document import build_profile
from dualpace.profiler.thresholds import CONTEXT, derive_thresholds
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.presets import GPUS, HOSTS, preset_profile
from dualpace.scheduling.profile import Profile, Threshold
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts
from tests.unit.profiler.measured import sweep

PROFILES = [
    *(preset_profile(g, h, "llama-3.1-8b") for g, h in itertools.product(GPUS, HOSTS)),
    build_profile(sweep(), {}),
]
TARGET_S = 1.0


def by_name(profile: Profile) -> dict[str, Threshold]:
    return {t.name: t for t in derive_thresholds(profile, TARGET_S)}


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: f"{p.gpu_name}-{p.host_name}")
def test_they_are_true(profile: Profile) -> None:
    found, costs = by_name(profile), NodeCosts(profile)
    rows = int(found["host_max_rows"].value)
    assert rows == 0 or costs.host.step_s(rows, rows * CONTEXT) <= TARGET_S
    assert costs.host.step_s(rows + 1, (rows + 1) * CONTEXT) > TARGET_S or rows == 4096
    routes = RouteCosts(costs)

    def gain(n: int) -> float:
        local, lent = (
            routes.forecast(r, n, n * CONTEXT, AssistTerms(open=True)).host_s
            for r in (Route.HOST, Route.ASSIST)
        )
        return local / lent

    if "assist_min_rows" in found:
        least = int(found["assist_min_rows"].value)
        assert gain(least) > 1.0
        assert all(gain(n) <= 1.0 for n in range(1, least))
    else:
        assert found["assist_best_gain"].value <= 1.0
    assert all(gain(1 << i) <= found["assist_best_gain"].value + 1e-3 for i in range(12))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: f"{p.gpu_name}-{p.host_name}")
def test_they_fit_the_operators_objects(profile: Profile) -> None:
    found = derive_thresholds(profile, TARGET_S)
    assert len({t.name for t in found}) == len(found)
    for threshold in found:
        assert re.fullmatch(r"[a-z][a-z0-9_]{0,63}", threshold.name)
        assert len(threshold.unit) <= 32 and 20 <= len(threshold.why) <= 1024


def test_a_tighter_target_admits_fewer() -> None:
    profile = PROFILES[-1]
    counts = [
        next(t.value for t in derive_thresholds(profile, target) if t.name == "host_max_rows")
        for target in (0.01, 0.1, 0.5, 2.0)
    ]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] > 0
