"""The comparison in one table: what each system sustains, and how it does when saturated.

Sustained rates are searched for two targets: P99 of the gaps between tokens (ITL), and P99 of the
mean gap of a request (TPOT). A seed moves arrivals; everything else of a run is fixed.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from dualpace.lab.goals import bounds_of, goals_of
from dualpace.lab.metrics import Metrics
from dualpace.lab.ratios import means, ratios
from dualpace.lab.search import RateSearch, Targets
from dualpace.lab.side_by_side import RATES, Comparison, compare
from dualpace.lab.simulation import simulated_metrics
from dualpace.lab.systems import SYSTEMS, Hardware, system
from dualpace.lab.traces import workload
from dualpace.lab.workload import poisson


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to compare."""

    hardware: Hardware
    hosts: tuple[str, ...]
    systems: tuple[str, ...] = tuple(SYSTEMS)
    workload: str = "azure-conv"
    requests: int = 2000
    seeds: tuple[int, ...] = (0, 1, 2)
    itl_target_s: float = 0.4
    tpot_target_s: float = 1.0
    ttft_limit_s: float = 10.0
    code_rates: tuple[float, ...] = RATES
    """At which ours is put beside the GPU alone on Azure's code trace; empty: not."""

    @property
    def of_goals(self) -> bool:
        """Whether it is the comparison that the project's goals are about."""
        hardware = replace(self.hardware, host=Hardware().host)
        return hardware == Hardware() and self.workload == "azure-conv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One system on one host with one seed."""

    system: str
    host: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a case came to."""

    case: Case
    rate_at_itl: float
    rate_at_tpot: float
    saturated: Metrics
    """Everybody comes at once."""
    within_itl: Metrics | None
    """The run with the highest throughput among those that keep the ITL target; None: none does."""
    at_itl_rate: Metrics | None


def cases(plan: Plan) -> list[Case]:
    """Every case of a plan; systems that do not use the host appear once, with the first."""
    return [
        Case(system=name, host=host, seed=seed)
        for name in plan.systems
        for host in (plan.hosts[:1] if name.startswith("vllm") else plan.hosts)
        for seed in plan.seeds
    ]


def run_case(plan: Plan, case: Case) -> Outcome:
    """Search one case."""
    search = _search(plan, case)
    itl = Targets(itl_p99_s=plan.itl_target_s, ttft_p99_s=plan.ttft_limit_s)
    tpot = Targets(tpot_p99_s=plan.tpot_target_s, ttft_p99_s=plan.ttft_limit_s)
    saturated = search.at(math.inf)
    rate_at_itl = search.sustained(itl)
    rate_at_tpot = search.sustained(tpot)
    within = [m for m in search.runs.values() if m.itl_p99_s <= plan.itl_target_s]
    return Outcome(
        case=case,
        rate_at_itl=rate_at_itl,
        rate_at_tpot=rate_at_tpot,
        saturated=saturated,
        within_itl=max(within, key=lambda m: m.tokens_per_s, default=None),
        at_itl_rate=search.at(rate_at_itl) if rate_at_itl else None,
    )


def run_plan(plan: Plan, *, jobs: int = 1) -> Iterator[Outcome]:
    """Search every case, `jobs` at a time; outcomes in the order of `cases`."""
    everything = cases(plan)
    if jobs == 1:
        for case in everything:
            yield run_case(plan, case)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run_case, [plan] * len(everything), everything)


def run_at(plan: Plan, case: Case, rate: float) -> Metrics:
    """One run of a case."""
    return _search(plan, case).at(rate)


def ttft_at_neo_rate(plan: Plan, outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Return P99 TTFT of NEO as shipped and of ours at the rate that NEO sustains."""
    result = []
    for outcome in outcomes:
        if outcome.case.system != "neo" or outcome.at_itl_rate is None:
            continue
        ours = run_at(plan, replace(outcome.case, system="dualpace"), outcome.rate_at_itl)
        result.append(
            {
                "host": outcome.case.host,
                "seed": outcome.case.seed,
                "rate": outcome.rate_at_itl,
                "neo": outcome.at_itl_rate.ttft_p99_s,
                "dualpace": ours.ttft_p99_s,
                "ratio": ours.ttft_p99_s / outcome.at_itl_rate.ttft_p99_s,
            }
        )
    return result


def _search(plan: Plan, case: Case) -> RateSearch:
    lengths = workload(plan.workload, count=plan.requests)
    hardware = replace(plan.hardware, host=case.host)
    build = system(case.system)
    return RateSearch(
        lambda rate: simulated_metrics(build, poisson(lengths, rate, case.seed), hardware)
    )


def code_trace(plan: Plan, *, jobs: int = 1) -> dict[str, Any] | None:
    """Put ours beside the GPU alone on Azure's code trace."""
    if not plan.code_rates:
        return None
    comparison = Comparison(
        hardware=[replace(plan.hardware, host=host) for host in plan.hosts],
        seeds=plan.seeds,
        requests=plan.requests,
        rates=plan.code_rates,
    )
    return compare(comparison, jobs=jobs)


def as_document(
    plan: Plan, outcomes: list[Outcome], commit: str, *, jobs: int = 1
) -> dict[str, Any]:
    """Return everything as plain values: each case, means over seeds, ratios, bounds, goals."""
    rows = means(outcomes)
    ttft = ttft_at_neo_rate(plan, outcomes)
    lengths = workload(plan.workload, count=plan.requests)
    bounds = bounds_of(plan.hardware, lengths, plan.itl_target_s, plan.hosts)
    return {
        "kind": "simulated",
        "commit": commit,
        "plan": {
            "gpu": plan.hardware.gpu,
            "model": plan.hardware.model,
            "device_blocks": plan.hardware.device_blocks,
            "host_blocks": plan.hardware.host_blocks,
            "hosts": list(plan.hosts),
            "workload": plan.workload,
            "requests": plan.requests,
            "seeds": list(plan.seeds),
            "itl_p99_target_s": plan.itl_target_s,
            "tpot_p99_target_s": plan.tpot_target_s,
            "ttft_p99_limit_s": plan.ttft_limit_s,
        },
        "systems": rows,
        "ratios": ratios(rows),
        "ttft_p99_s_at_neo_rate": ttft,
        "bounds": bounds,
        "goals": goals_of(rows, bounds, ttft) if plan.of_goals else [],
        "code_trace": code_trace(plan, jobs=jobs),
        "cases": [_case_document(outcome) for outcome in outcomes],
    }


def _case_document(outcome: Outcome) -> dict[str, Any]:
    return {
        "system": outcome.case.system,
        "host": outcome.case.host,
        "seed": outcome.case.seed,
        "rate_at_itl": outcome.rate_at_itl,
        "rate_at_tpot": outcome.rate_at_tpot,
        "saturated": outcome.saturated.as_dict(),
        "within_itl": outcome.within_itl.as_dict() if outcome.within_itl else None,
        "at_itl_rate": outcome.at_itl_rate.as_dict() if outcome.at_itl_rate else None,
    }
