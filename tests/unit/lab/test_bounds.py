"""Bounds against what runs reach, and goals against rows written by hand."""

import math
from dataclasses import replace

import pytest

from dualpace.lab.bounds import Resources, mix_of, throughput, ttft_p99_s
from dualpace.lab.goals import GOALS, goals_of
from dualpace.lab.simulation import simulated_metrics
from dualpace.lab.systems import BLOCK_SIZE, SYSTEMS, Hardware
from dualpace.lab.traces import workload
from dualpace.lab.workload import fixed, poisson


def resources(hardware: Hardware, *, host: bool = True, itl_target_s: float = 0.4) -> Resources:
    return Resources(
        costs=hardware.costs(),
        device_tokens=hardware.device_blocks * BLOCK_SIZE,
        host_tokens=hardware.host_blocks * BLOCK_SIZE if host else 0,
        itl_target_s=itl_target_s,
    )


@pytest.mark.parametrize("system", ["vllm", "dualpace"])
@pytest.mark.parametrize(("prompt", "output", "blocks"), [(800, 200, 400), (1500, 40, 800)])
def test_no_run_beats_its_bound_and_none_is_far_below(
    system: str, prompt: int, output: int, blocks: int
) -> None:
    lengths, hardware = fixed(150, prompt, output), Hardware(device_blocks=blocks)
    run = simulated_metrics(SYSTEMS[system], poisson(lengths, math.inf, 0), hardware)
    best = throughput(resources(hardware, host=system == "dualpace"), mix_of(lengths))
    assert 0.7 * best.tokens_per_s < run.tokens_per_s < best.tokens_per_s
    assert run.ttft_p99_s > ttft_p99_s(resources(hardware), lengths)


def test_bounds_move_with_what_a_node_has() -> None:
    mix = mix_of(workload("azure-conv"))
    slow = throughput(resources(Hardware()), mix).tokens_per_s
    fast = throughput(resources(Hardware(host="xeon-4510-180")), mix).tokens_per_s
    alone = throughput(resources(Hardware(), host=False), mix).tokens_per_s
    larger = throughput(resources(Hardware(device_blocks=3300), host=False), mix).tokens_per_s
    hasty = throughput(resources(Hardware(), itl_target_s=0.2), mix).tokens_per_s
    lent = throughput(replace(resources(Hardware()), weights_read=True), mix).tokens_per_s
    assert alone < hasty < slow < fast
    assert alone < larger
    assert 0.9 * slow < lent < slow


def test_prompts_alone_bound_short_answers() -> None:
    """No more requests than a 4090's arithmetic can begin, whatever the host may hold."""
    lengths = fixed(10, 2000, 2)
    best = throughput(resources(Hardware()), mix_of(lengths))
    flops = 2 * 6.98e9 * 2000
    assert 0.8 * 150e12 / flops < best.requests_per_s < 165e12 / flops


def row(system: str, host: str, value: float) -> dict[str, object]:
    measures = {goal.measure: value for goal in GOALS}
    return {"system": system, "host": host, "most_host_steps_waited": 2, **measures}


def test_goals_name_what_was_reached_and_what_could_be() -> None:
    host = "xeon-4510-120"
    systems = [row("dualpace", host, 3.0), row("neo", host, 2.0), row("vllm", host, 1.0)]
    bounds = [{"host": host, "tokens_per_s": 4.0, "requests_per_s": 5.0, "ttft_p99_s": 0.5}]
    ttft = [{"host": host, "ratio": 1.2, "neo": 2.0}, {"host": host, "ratio": 1.1, "neo": 2.0}]
    found = {goal["goal"]: goal for goal in goals_of(systems, bounds, ttft)}
    assert found["rate_at_itl over neo"] == {
        "goal": "rate_at_itl over neo",
        "host": host,
        "wanted": ">= 1.6",
        "reached": 1.5,
        "possible": 2.5,
        "met": False,
    }
    assert found["tokens_per_s_saturated over vllm"]["met"]
    assert found["tokens_per_s_saturated over vllm"]["possible"] == 4.0
    assert "rate_at_itl over neo-measured" not in found
    waited = found["ttft_p99_s over neo at its rate"]
    assert (waited["met"], waited["possible"]) == (False, 0.25)
    assert waited["reached"] == pytest.approx(1.15)
    assert found["host steps waited for a token"]["met"]
