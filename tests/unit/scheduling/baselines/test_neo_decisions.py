"""Our NEO decides what the original was recorded to decide: every step, every call."""

from collections import deque
from typing import Any

import pytest

from dualpace.core.errors import CapacityError, PredictionRangeError
from dualpace.core.messages import Submit
from dualpace.core.request import Request
from dualpace.scheduling.baselines.neo import NeoPlan, NeoScheduler
from dualpace.scheduling.baselines.neo.decision import Budget, decide
from dualpace.scheduling.plan import Sample
from tests.unit.scheduling.baselines.neo_fixtures import (
    config_of,
    ids,
    predictor_of,
    recorded,
    sequence_of,
)

SCENARIOS = recorded()["scenarios"]


def scheduler_of(scenario: dict[str, Any]) -> NeoScheduler:
    return NeoScheduler(config_of(scenario["config"]), predictor_of(scenario["tables"]))


def outcome(scheduler: NeoScheduler, plan: NeoPlan) -> dict[str, Any]:
    return {
        "batches": ids(plan.batches),
        "swap_out": [s.request_id for s in plan.swap_out],
        "swap_in": [s.request_id for s in plan.swap_in],
        "waiting": [s.request_id for s in scheduler.waiting],
        "gpu": [s.request_id for s in scheduler.gpu],
        "cpu": [s.request_id for s in scheduler.cpu],
    }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s["name"] for s in SCENARIOS])
def test_every_step_alone(scenario: dict[str, Any]) -> None:
    compared = 0
    for step in scenario["steps"]:
        scheduler = scheduler_of(scenario)
        before = step["before"]
        scheduler.waiting = deque(sequence_of(*pair) for pair in before["waiting"])
        scheduler.gpu = [sequence_of(*pair) for pair in before["gpu"]]
        scheduler.cpu = deque(sequence_of(*pair) for pair in before["cpu"])
        assert scheduler.free_ids == before["free_ids"]
        if "error" in step:
            assert step["error"] == "no_free_id"
            with pytest.raises(CapacityError, match="free ids"):
                scheduler.schedule(0.0)
            continue
        plan = scheduler.schedule(0.0)
        assert outcome(scheduler, plan) == step["result"], f"step {step['t']}"
        compared += 1
    assert compared >= len(scenario["steps"]) - 1


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s["name"] for s in SCENARIOS])
def test_all_steps_in_a_row(scenario: dict[str, Any]) -> None:
    """Through submit, schedule and apply alone, so that any drift of the state shows."""
    scheduler = scheduler_of(scenario)
    by_id = {r["id"]: r for r in scenario["requests"]}
    for request in scenario["requests"]:
        if "start_queue" in request:
            _start(scheduler, request)
    for step in scenario["steps"]:
        for request_id in step.get("arrived", ()):
            _submit(scheduler, by_id[request_id])
        if "error" in step:
            break
        plan = scheduler.schedule(float(step["t"]))
        assert outcome(scheduler, plan) == step["result"], f"step {step['t']}"
        scheduler.apply(Sample(s.request_id, 0) for b in plan.batches for s in b.members())
        finished = {e.request_id for e in scheduler.drain() if hasattr(e, "reason")}
        assert finished == set(step["finished"])


def _request(recorded_request: dict[str, Any]) -> Request:
    return Request(
        request_id=recorded_request["id"],
        gateway_id=1,
        prompt_tokens=recorded_request["prompt_len"],
        max_tokens=recorded_request["output_len"],
    )


def _submit(scheduler: NeoScheduler, recorded_request: dict[str, Any]) -> None:
    request = _request(recorded_request)
    scheduler.submit(Submit(request, (0,) * request.prompt_tokens))


def _start(scheduler: NeoScheduler, recorded_request: dict[str, Any]) -> None:
    """A request that already runs at the first step."""
    _submit(scheduler, recorded_request)
    sequence = scheduler.waiting.pop()
    sequence.tokens.extend([0] * recorded_request["start_output"])
    (scheduler.gpu if recorded_request["start_queue"] == "gpu" else scheduler.cpu).append(sequence)


def test_every_single_mode_decision() -> None:
    for case in recorded()["decide_cases"]:
        config, state = config_of(case["config"]), case["state"]
        batches = decide(
            config,
            predictor_of(case["tables"]),
            gprf=[sequence_of(*pair) for pair in state["gprf"]],
            cprf=[sequence_of(*pair) for pair in state["cprf"]],
            gdec=[sequence_of(*pair) for pair in state["gpu"]],
            cpu_queue=[sequence_of(*pair) for pair in state["cpu"]],
            budget=Budget(state["rows"], state["tokens"]),
        )
        assert ids(batches) == case["result"], case["family"]


def test_every_prediction() -> None:
    for case in recorded()["predict_cases"]:
        predict = getattr(predictor_of(case["tables"]), case["kind"])
        if "error" in case:
            with pytest.raises(PredictionRangeError):
                predict(*case["args"])
        else:
            assert predict(*case["args"]) == pytest.approx(case["ms"], rel=1e-9)
