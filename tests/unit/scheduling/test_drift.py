"""The wish for a new profile: for steady drift alone."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.scheduling.drift import DriftDetector


def feed(
    detector: DriftDetector, ratios: list[float], *, start_s: float = 0.0, every_s: float = 0.1
) -> None:
    for i, ratio in enumerate(ratios):
        detector.observe(start_s + i * every_s, 10.0, 10.0 * ratio)


def wants(detector: DriftDetector) -> bool:
    return detector.wanted


def noisy(centre: float, count: int, *, sigma: float = 0.2, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [centre * math.exp(rng.gauss(0.0, sigma)) for _ in range(count)]


@pytest.mark.parametrize("drift", [3.0, 1 / 3.0])
def test_steady_drift_is_told_either_way_and_with_its_size(drift: float) -> None:
    detector = DriftDetector(hold_s=60.0)
    feed(detector, noisy(drift, 500))  # fifty seconds
    assert not wants(detector)
    feed(detector, noisy(drift, 300), start_s=50.0)
    assert wants(detector)
    assert detector.ratio == pytest.approx(drift, rel=0.1)


@given(st.integers(0, 1 << 30))
def test_noise_around_the_prediction_is_no_drift(seed: int) -> None:
    detector = DriftDetector(hold_s=0.0)
    feed(detector, noisy(1.0, 600, sigma=0.5, seed=seed))
    assert not wants(detector)


@given(st.integers(0, 1 << 30), st.floats(10.0, 1000.0))
def test_a_fifth_of_outliers_is_no_drift(seed: int, outlier: float) -> None:
    rng = random.Random(seed)
    ratios = [outlier if rng.random() < 0.2 else 1.0 for _ in range(256)]
    if ratios.count(outlier) <= 64:
        detector = DriftDetector(hold_s=0.0)
        feed(detector, ratios)
        assert not wants(detector)


def test_a_short_episode_is_no_drift() -> None:
    detector = DriftDetector(hold_s=60.0)
    feed(detector, noisy(1.0, 300))
    feed(detector, noisy(4.0, 300), start_s=30.0)
    feed(detector, noisy(1.0, 600), start_s=60.0)
    assert not wants(detector)


def test_the_wish_is_dropped_when_it_is_over_and_with_a_new_profile() -> None:
    detector = DriftDetector(hold_s=10.0)
    feed(detector, noisy(3.0, 600))
    assert wants(detector)
    feed(detector, noisy(1.3, 300), start_s=60.0)  # not yet halfway back from 1.5
    assert wants(detector)
    feed(detector, noisy(1.0, 300), start_s=90.0)
    assert not wants(detector)
    feed(detector, noisy(3.0, 600), start_s=120.0)
    assert wants(detector)
    detector.reset()
    assert not wants(detector) and detector.ratio == 1.0


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_what_cannot_be_compared_is_passed_over(wrong: float) -> None:
    detector = DriftDetector(hold_s=0.0)
    for i in range(200):
        detector.observe(float(i), wrong, 1.0)
        detector.observe(float(i), 1.0, wrong)
    assert detector.ratio == 1.0 and not wants(detector)
