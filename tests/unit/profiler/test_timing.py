"""When to stop repeating, and which samples count."""

import itertools
import random
import statistics
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.errors import StoppedError
from dualpace.profiler.timing import Patience, Surroundings, measure, summarise


class World:
    """Samples that take what they say, on a clock of their own; some wait for a CPU."""

    def __init__(self, samples: Iterable[tuple[float, float]]) -> None:
        self._samples: Iterator[tuple[float, float]] = iter(samples)
        self.now_s = 0.0
        self.waited_s = 0.0
        self.taken = 0

    def sample(self) -> float:
        ms, waited_ms = next(self._samples)
        self.taken += 1
        self.now_s += ms / 1e3
        self.waited_s += waited_ms / 1e3
        return ms

    @property
    def around(self) -> Surroundings:
        return Surroundings(now_s=lambda: self.now_s, waited_s=lambda: self.waited_s)


PATIENCE = Patience(tolerance=0.05, most_s=1.0, most_disturbed_s=2.0, least=5, warm_up=2)


def steady(ms: float, noise: float = 0.01) -> Iterator[tuple[float, float]]:
    rng = random.Random(1)
    return ((ms * rng.uniform(1 - noise, 1 + noise), 0.0) for _ in itertools.count())


def test_steady_work_is_measured_a_few_times_after_its_warm_up() -> None:
    cold = [(90.0, 0.0), (50.0, 0.0)]
    world = World(itertools.chain(cold, steady(10.0)))
    summary = measure(world.sample, PATIENCE, world.around)
    assert summary.ms == pytest.approx(10.0, rel=0.02)
    assert summary.stable and summary.samples == 5 and world.taken == 7


def test_unsteady_work_is_repeated_until_time_is_up() -> None:
    rng = random.Random(1)
    world = World((rng.uniform(1.0, 100.0), 0.0) for _ in itertools.count())
    summary = measure(
        world.sample, Patience(tolerance=0.01, most_s=1.0, most_disturbed_s=1.0), world.around
    )
    assert not summary.stable and summary.samples > 5
    assert 1.0 <= world.now_s < 1.2


def test_slow_work_is_measured_the_fewest_times_however_long_that_takes() -> None:
    world = World(steady(800.0))
    summary = measure(world.sample, PATIENCE, world.around)
    assert summary.samples == 5 and summary.stable


def test_samples_that_waited_for_a_cpu_do_not_count_where_others_suffice() -> None:
    disturbed = itertools.cycle([(10.0, 0.0), (25.0, 15.0), (31.0, 21.0)])
    world = World(disturbed)
    summary = measure(world.sample, PATIENCE, world.around)
    assert (summary.ms, summary.samples, summary.disturbed) == (10.0, 5, 0)
    assert summary.stable


def test_where_all_samples_waited_they_count_and_it_is_said() -> None:
    world = World(itertools.repeat((30.0, 20.0)))
    summary = measure(world.sample, PATIENCE, world.around)
    assert summary.ms == 30.0 and not summary.stable
    assert summary.disturbed == summary.samples >= 5


def test_quiet_samples_are_waited_for_a_while() -> None:
    noise = [(50.0, 40.0)] * 25  # more than a second of it
    world = World(itertools.chain(noise, steady(10.0)))
    summary = measure(world.sample, PATIENCE, world.around)
    assert summary.ms == pytest.approx(10.0, rel=0.02) and summary.disturbed == 0
    assert 1.0 < world.now_s < 2.0


def test_a_stop_ends_it_between_samples() -> None:
    world = World(steady(10.0))

    def check() -> None:
        if world.taken == 4:
            raise StoppedError("enough")

    around = Surroundings(now_s=lambda: world.now_s, check=check)
    with pytest.raises(StoppedError):
        measure(world.sample, PATIENCE, around)
    assert world.taken == 4


@given(st.lists(st.floats(0.001, 1e6), min_size=2, max_size=50), st.floats(0.001, 0.5))
def test_a_summary_is_the_median_and_more_of_the_same_makes_it_steadier(
    samples: list[float], tolerance: float
) -> None:
    summary = summarise(samples, tolerance)
    assert summary.ms == statistics.median(samples)
    assert min(samples) <= summary.ms <= max(samples)
    assert summary.spread >= 0.0
    if summary.stable:
        assert summarise(samples * 9, tolerance).stable
    assert summarise([samples[0]] * 5, tolerance).stable
    assert not summarise(samples[:1], tolerance).stable
