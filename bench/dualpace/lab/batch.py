"""Many runs, several at a time, each named by plain values."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from dualpace.lab.metrics import Metrics
from dualpace.lab.search import RateSearch, Targets
from dualpace.lab.simulation import simulated_metrics
from dualpace.lab.systems import Hardware, system
from dualpace.lab.traces import workload
from dualpace.lab.workload import poisson


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, but for the rate of a search."""

    system: str
    hardware: Hardware
    rate: float = 0.0
    workload: str = "azure-conv"
    requests: int = 2000
    seed: int = 0


def run(case: Run) -> Metrics:
    """Simulate one."""
    lengths = workload(case.workload, count=case.requests)
    arrivals = poisson(lengths, case.rate, case.seed)
    return simulated_metrics(system(case.system), arrivals, case.hardware)


def search_rate(case: Run, targets: Targets) -> float:
    """Return the highest rate at which a system keeps its targets."""
    lengths = workload(case.workload, count=case.requests)
    build = system(case.system)
    search = RateSearch(
        lambda rate: simulated_metrics(build, poisson(lengths, rate, case.seed), case.hardware)
    )
    return search.sustained(targets)


def run_all(cases: Sequence[Run], *, jobs: int) -> Iterator[Metrics]:
    """Simulate all; results in order, each as soon as it and those before it are there."""
    if jobs == 1:
        yield from map(run, cases)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, cases)


def search_all(cases: Sequence[Run], targets: Targets, *, jobs: int) -> Iterator[float]:
    """Search all; results in order."""
    if jobs == 1:
        yield from (search_rate(case, targets) for case in cases)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(search_rate, cases, [targets] * len(cases))
