"""Simulated nodes: nothing is lost, nobody starves, and equal seeds give equal runs."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.lab.gpu_clock import GpuClock
from dualpace.lab.metrics import measure
from dualpace.lab.node import TwoClocks, submit_all
from dualpace.lab.recorder import Recorder
from dualpace.lab.simulation import simulate, simulated_metrics
from dualpace.lab.systems import PLAIN, SYSTEMS, Hardware, Options, dualpace
from dualpace.lab.timeline import Timeline
from dualpace.lab.traces import workload
from dualpace.lab.workload import Arrival, fixed, poisson, sharegpt_like
from dualpace.scheduling.plan import KvCopy

TINY = Hardware(device_blocks=40, host_blocks=120)
ARRIVALS = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=30
)
VARIANTS = {
    "all": Options(),
    "plain": PLAIN,
    "no target": replace(Options(), itl_target_s=None),
    "no assist": replace(Options(), assist=False),
}


def arrivals_of(drawn: list[tuple[float, int, int]]) -> list[Arrival]:
    ordered = sorted(drawn)
    return [Arrival(i, *item) for i, item in enumerate(ordered)]


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25, deadline=None)
@given(drawn=ARRIVALS)
def test_every_step_keeps_the_books_and_everybody_ends(
    variant: str, drawn: list[tuple[float, int, int]]
) -> None:
    """Memory for two or three requests: preemption, eviction and moves all happen.

    The recorder asserts that tokens come in order and that none is lost.
    """
    arrivals = arrivals_of(drawn)
    timeline, recorder = Timeline(), Recorder(arrivals)
    node = dualpace(VARIANTS[variant])(timeline, recorder, TINY)
    assert isinstance(node, TwoClocks)
    submit_all(timeline, node, arrivals)
    while not recorder.complete:
        assert timeline.step(), "requests are stuck"
        node.check()


@pytest.mark.parametrize("name", ["neo", "neo-measured", "vllm"])
@settings(max_examples=25, deadline=None)
@given(drawn=ARRIVALS)
def test_baselines_end_everybody_too(name: str, drawn: list[tuple[float, int, int]]) -> None:
    recorder = simulate(SYSTEMS[name], arrivals_of(drawn), TINY)
    assert recorder.complete


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_a_host_with_room_for_a_crowd_is_filled_by_everybody(name: str) -> None:
    roomy = Hardware(device_blocks=40, host_blocks=20_000)
    crowd = [Arrival(index, 0.0, 2, 12) for index in range(1500)]
    tracks = simulate(SYSTEMS[name], crowd, roomy).tracks.values()
    assert all(len(track.times_s) == 12 for track in tracks)


@pytest.mark.parametrize("name", SYSTEMS)
def test_equal_seeds_give_equal_runs(name: str) -> None:
    def times(seed: int) -> list[list[float]]:
        arrivals = poisson(workload("azure-conv", count=60), 3.0, seed)
        return [t.times_s for t in simulate(SYSTEMS[name], arrivals).tracks.values()]

    assert times(1) == times(1) != times(2)


def test_tokens_come_no_faster_than_the_hardware_can_make_them() -> None:
    """A lone request: prefill, then one decode after the other, at the cost model's times."""
    hardware = Hardware()
    recorder = simulate(SYSTEMS["vllm"], [Arrival(0, 5.0, 1000, 20)], hardware)
    times = recorder.tracks[0].times_s
    weights_s = 14.0e9 / 1008e9  # a 4090's peak bandwidth
    assert min(b - a for a, b in itertools.pairwise(times)) > weights_s
    assert times[0] - 5.0 > 1000 * 14e9 / 165e12


def test_the_host_takes_over_what_the_device_cannot_hold() -> None:
    arrivals = poisson(fixed(60, 800, 200), math.inf, 0)
    alone = simulated_metrics(SYSTEMS["vllm"], arrivals, Hardware(device_blocks=400))
    both = simulated_metrics(SYSTEMS["dualpace"], arrivals, Hardware(device_blocks=400))
    assert both.host_token_share > 0.3
    assert both.tokens_per_s > 1.3 * alone.tokens_per_s


def test_host_residents_advance_in_every_iteration_while_neo_leaves_them_standing() -> None:
    """On a 4090 NEO as shipped has plateaus of tens of seconds, on a T4 it has not."""
    arrivals = poisson(workload("azure-conv", count=500), 3.2, 0)
    ours = simulated_metrics(SYSTEMS["dualpace"], arrivals)
    assert ours.host_token_share > 0.1
    assert ours.most_host_steps_waited <= 2
    assert ours.longest_host_stall_s <= 0.4
    neo = simulate(SYSTEMS["neo"], arrivals)
    assert neo.longest_host_stall_s > 10.0
    assert len(neo.host_steps) < 0.05 * len(neo.gpu_steps)
    t4 = Hardware(gpu="t4", model="llama-2-7b", host="xeon-4510-65", device_blocks=200)
    open_gate = simulate(SYSTEMS["neo"], poisson(sharegpt_like(300, 0), 2.0, 0), t4)
    assert len(open_gate.host_steps) > 0.5 * len(open_gate.gpu_steps)


def test_the_latency_target_bounds_the_host() -> None:
    arrivals = poisson(workload("azure-conv", count=400), math.inf, 0)
    for target in (0.25, 0.5):
        metrics = simulated_metrics(dualpace(replace(Options(), itl_target_s=target)), arrivals)
        assert metrics.host_itl_p50_s <= target
        assert metrics.itl_p99_s <= 1.1 * target


def test_metrics_of_a_run_by_hand() -> None:
    recorder = Recorder([Arrival(0, 1.0, 4, 3), Arrival(1, 2.0, 4, 1)])
    recorder.tracks[0].times_s.extend([1.5, 1.7, 2.1])
    recorder.tracks[1].times_s.append(2.25)
    recorder.finished = 2
    metrics = measure(recorder)
    assert metrics.ttft_mean_s == pytest.approx(0.375)
    assert metrics.itl_p50_s == pytest.approx(0.3)
    assert metrics.tpot_mean_s == pytest.approx(0.3)
    assert metrics.normalized_latency_s == pytest.approx((1.1 / 3 + 0.25) / 2)
    assert metrics.duration_s == 2.25


def test_who_comes_back_is_in_the_first_iteration_that_begins_after_its_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copies begin when the host gives a request back, also while an iteration runs."""
    copied: list[tuple[int, float]] = []
    amid_iterations = 0
    back = GpuClock._copy_back

    def noted(clock: GpuClock, copies: Iterable[KvCopy]) -> None:
        nonlocal amid_iterations
        for copy in copies:
            amid_iterations += clock._plan is not None
            back(clock, [copy])
            copied.append((copy.request_id, clock._in_free_s))

    monkeypatch.setattr(GpuClock, "_copy_back", noted)
    recorder = simulate(SYSTEMS["dualpace"], poisson(workload("azure-conv", count=300), 3.2, 0))
    ends = [end_s for end_s, _, _ in recorder.gpu_steps]
    assert amid_iterations > 0.8 * len(copied) > 20
    for request_id, copied_s in copied:
        token_s = next(t for t in recorder.tracks[request_id].times_s if t > copied_s)
        # The one that ran when the copy ended, if one did, and the one that has it.
        assert sum(copied_s < end_s <= token_s for end_s in ends) <= 2
