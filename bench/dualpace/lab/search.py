"""The highest request rate that a system sustains: bisection over a grid of rates.

A rate is sustained when every request ends, latency at the 99th percentile keeps its target, and
the queue does not grow, which shows in the 99th percentile of TTFT. That falls off a cliff where a
node saturates, so the exact limit matters little.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from dualpace.lab.metrics import Metrics

STEP = 0.05
"""Requests per second between two rates of the grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Upper bounds; infinite: none."""

    itl_p99_s: float = math.inf
    tpot_p99_s: float = math.inf
    ttft_p99_s: float = 10.0

    def met_by(self, metrics: Metrics) -> bool:
        """Whether a run keeps all of them."""
        return (
            metrics.finished == metrics.requests
            and metrics.itl_p99_s <= self.itl_p99_s
            and metrics.tpot_p99_s <= self.tpot_p99_s
            and metrics.ttft_p99_s <= self.ttft_p99_s
        )


@dataclass(slots=True)
class RateSearch:
    """Runs of one system, kept so that no rate is simulated twice."""

    run: Callable[[float], Metrics]
    runs: dict[int, Metrics] = field(default_factory=dict)

    def at(self, rate: float) -> Metrics:
        """Return the run at the grid's rate nearest to this one, or at infinity."""
        index = -1 if math.isinf(rate) else round(rate / STEP)
        if index not in self.runs:
            self.runs[index] = self.run(math.inf if index < 0 else index * STEP)
        return self.runs[index]

    def sustained(self, targets: Targets, *, low: float = 0.5, high: float = 8.0) -> float:
        """Return the highest rate of the grid that is sustained; 0: not even `low`.

        It takes for granted that what fails at a rate fails at higher ones.
        """
        good, bad = round(low / STEP) - 1, round(high / STEP) + 1
        for index, metrics in self.runs.items():
            if index > 0 and targets.met_by(metrics):
                good = max(good, index)
        for index, metrics in self.runs.items():
            if good < index < bad and not targets.met_by(metrics):
                bad = index
        while bad - good > 1:
            middle = (good + bad) // 2
            if targets.met_by(self.at(middle * STEP)):
                good = middle
            else:
                bad = middle
        return good * STEP if good * STEP >= low else 0.0
