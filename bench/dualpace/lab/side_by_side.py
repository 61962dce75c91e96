"""Ours beside the GPU alone at equal rates, where little is to be gained: nothing may get worse.

Azure's code trace has long prompts and short answers: the GPU's arithmetic bounds it, and a host
can hardly help. Compared are means over seeds, and of every measure the worst that any rate and
host shows. It runs both and knows neither.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dualpace.lab.batch import Run, run_all
from dualpace.lab.metrics import Metrics
from dualpace.lab.systems import Hardware

MEASURES = (
    "tokens_per_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "itl_p50_s",
    "itl_p99_s",
    "tpot_mean_s",
    "tpot_p99_s",
)
RATES = (1.0, 2.0, 3.0, 3.5, 4.0, math.inf)
ALLOWED = 0.02
"""How much worse any measure may be, as a share of theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared."""

    hardware: Sequence[Hardware]
    """One for each host."""
    seeds: Sequence[int]
    requests: int
    workload: str = "azure-code"
    rates: Sequence[float] = RATES
    ours: str = "dualpace"
    theirs: str = "vllm"


def compare(plan: Comparison, *, jobs: int = 1) -> dict[str, Any]:
    """Run everything; returns a row for each host and rate, and the worst of each measure."""
    first = plan.hardware[0]
    theirs = _runs(plan, plan.theirs, first, jobs)
    rows: list[dict[str, Any]] = []
    for hardware in plan.hardware:
        ours = _runs(plan, plan.ours, hardware, jobs)
        rows += [
            {"host": hardware.host, "rate": rate, **_row(ours[rate], theirs[rate])}
            for rate in plan.rates
        ]
    worst: dict[str, float] = {key: max(row[f"{key}_worse"] for row in rows) for key in MEASURES}
    return {
        "workload": plan.workload,
        "ours": plan.ours,
        "theirs": plan.theirs,
        "allowed": ALLOWED,
        "met": max(worst.values()) <= ALLOWED,
        "worst": worst,
        "rates": rows,
    }


def _runs(
    plan: Comparison, system: str, hardware: Hardware, jobs: int
) -> dict[float, list[Metrics]]:
    cases = [
        Run(
            system=system,
            hardware=hardware,
            rate=rate,
            workload=plan.workload,
            requests=plan.requests,
            seed=seed,
        )
        for rate in plan.rates
        for seed in plan.seeds
    ]
    results: dict[float, list[Metrics]] = {rate: [] for rate in plan.rates}
    for case, metrics in zip(cases, run_all(cases, jobs=jobs), strict=True):
        results[case.rate].append(metrics)
    return results


def _row(ours: Sequence[Metrics], theirs: Sequence[Metrics]) -> dict[str, float]:
    row = {}
    for key in MEASURES:
        row[key] = _mean(ours, key)
        change = row[key] / _mean(theirs, key) - 1.0
        row[f"{key}_worse"] = -change if key == "tokens_per_s" else change
    return row


def _mean(runs: Sequence[Metrics], key: str) -> float:
    return sum(metrics.as_dict()[key] for metrics in runs) / len(runs)
