"""Short answers: ours is nowhere worse than the GPU alone, and the comparison would show it."""

import math

import pytest

from dualpace.lab.side_by_side import ALLOWED, MEASURES, Comparison, compare
from dualpace.lab.systems import Hardware


def test_azures_code_trace_gets_no_worse() -> None:
    plan = Comparison(hardware=[Hardware()], seeds=(0,), requests=2000, rates=(2.0, 4.0, math.inf))
    result = compare(plan)
    assert result["met"]
    assert max(result["worst"].values()) <= ALLOWED
    busy = next(row for row in result["rates"] if row["rate"] == 4.0)
    assert busy["ttft_p99_s_worse"] < 0.0


def test_what_is_worse_shows() -> None:
    plan = Comparison(
        hardware=[Hardware(), Hardware(host="xeon-4510-180")],
        seeds=(0, 1),
        requests=60,
        rates=(4.0,),
        ours="vllm-256",
    )
    result = compare(plan)
    assert not result["met"]
    assert result["worst"]["ttft_p50_s"] > ALLOWED
    assert [row["host"] for row in result["rates"]] == ["xeon-4510-120", "xeon-4510-180"]
    same = compare(Comparison(hardware=plan.hardware, seeds=(0,), requests=60, ours="vllm"))
    assert same["worst"] == dict.fromkeys(MEASURES, pytest.approx(0.0))
    assert same["met"]
