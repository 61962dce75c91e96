"""Whether the router takes the faster way, cell by cell: real iterations, emulated device.

    PYTHONPATH=bench python -m assist.route_cells [--rounds 5]

In each cell (batch, context) both ways of running an iteration are measured: every stage on this
host, and the dense ones lent to an emulated GPU in another process. Then a policy is given the
profile and runs iterations of random cells; what it would choose in each is held against the times
measured before and after. The same with profiles in which one side is wrong by a factor. A policy
*holds* when its way is the faster one in 95 % of the cells, and nowhere more than 10 % slower than
the best. A cell in which the measurement does not tell them apart is a tie: either way counts as
the faster one. The last line is one JSON object; times are milliseconds.
"""

import argparse
import copy
import json
import math
import random
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assist.cells import Cell, CellNode, cell_node, forced
from decoupling.profiles import emulated_profile, measure_host, node_plan

from dualpace.profiles import write_profile
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.live_policy import LivePolicy
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts
from dualpace.testing.skewed_profiles import skewed

_ROUTES = (Route.HOST, Route.ASSIST)
_LOOK_EVERY = 5
_SKEWS = {
    "as measured": (1.0, 1.0),
    "host 3 x too slow": (3.0, 1.0),
    "host 3 x too fast": (1 / 3, 1.0),
    "device 3 x too slow": (1.0, 3.0),
    "device 3 x too fast": (1.0, 1 / 3),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A policy's choices against the measured times."""

    right: float
    """Share of the cells in which it takes the faster way."""
    worst: float
    """Its way's time over the best, in the worst cell."""

    @property
    def holds(self) -> bool:
        """Whether that is good enough."""
        return self.right >= 0.95 and self.worst <= 1.1


@dataclass(frozen=True, slots=True)
class Measured:
    """Both ways of a cell: median seconds, and how their ratio came out.

    The ratio is that of neighbouring runs, so that a machine that is faster or slower for a while
    does not count.
    """

    times: Mapping[Route, float]
    log_ratio: float
    """Of host over assist, the median."""
    error: float
    """Twice its standard error."""

    @property
    def tie(self) -> bool:
        """Whether the measurement does not tell which is faster."""
        return abs(self.log_ratio) < self.error

    def over_best(self, route: Route) -> float:
        """Return a way's time over that of the faster one; 1 in a tie."""
        best = Route.ASSIST if self.log_ratio > 0 else Route.HOST
        return 1.0 if self.tie or route is best else math.exp(abs(self.log_ratio))


Times = Mapping[Cell, Measured]
Samples = Mapping[Cell, Mapping[Route, Sequence[float]]]


def sample(node: CellNode, cells: list[Cell], rounds: int, profile: Profile) -> Samples:
    """Run each cell on each route, in turns, as the profile would have it run there; seconds."""
    costs = RouteCosts(NodeCosts(profile))
    samples: dict[Cell, dict[Route, list[float]]] = {
        cell: {route: [] for route in _ROUTES} for cell in cells
    }
    for cell in cells:
        for turn in range(rounds + 1):
            for route in _ROUTES:
                seconds = node.run(cell, forced(cell, route, costs))
                if turn:  # the first one warms up
                    samples[cell][route].append(seconds)
    return samples


def measured(*passes: Samples) -> Times:
    """Sum several passes up: those before and after what is judged by them."""
    times: dict[Cell, Measured] = {}
    for cell in passes[0]:
        kept = {route: [s for one in passes for s in one[cell][route]] for route in _ROUTES}
        medians = {route: statistics.median(taken) for route, taken in kept.items()}
        pairs = zip(kept[Route.HOST], kept[Route.ASSIST], strict=True)
        ratios = [math.log(host / assist) for host, assist in pairs]
        times[cell] = Measured(medians, statistics.median(ratios), 2 * _error_of_median(ratios))
    return times


def _error_of_median(samples: Sequence[float]) -> float:
    """Return its standard error, from the median deviation: outliers count for little."""
    middle = statistics.median(samples)
    spread = 1.4826 * statistics.median(abs(sample - middle) for sample in samples)
    return 1.2533 * spread / math.sqrt(len(samples))


Choices = Mapping[Cell, Route]


def choices(policy: LivePolicy, cells: Iterable[Cell]) -> Choices:
    """Ask a policy about every cell, without its noticing."""
    asked = copy.deepcopy(policy)

    def choice(cell: Cell) -> Route:
        tried = asked.decisions["probe"]
        route = asked.shape(cell.kv_tokens).route
        if asked.decisions["probe"] == tried:
            return route
        return choice(cell)  # it would try the other way just now: that is no opinion

    return {cell: choice(cell) for cell in cells}


def judge(chosen: Choices, times: Times) -> Verdict:
    """Hold choices against measured times."""
    over_best = [cell_times.over_best(chosen[cell]) for cell, cell_times in times.items()]
    right = sum(ratio == 1.0 for ratio in over_best)
    return Verdict(right / len(times), max(over_best))


def learn(
    node: CellNode, profile: Profile, cells: list[Cell], steps: int, seed: int
) -> list[tuple[int, Choices]]:
    """Run iterations of random cells; return how many were run, and what is chosen then."""
    draw = random.Random(seed)  # noqa: S311 - a workload, the same in every run
    policy = LivePolicy(profile)
    policy.terms = node.assisted.terms(device_present=True)
    course = [(0, choices(policy, cells))]
    for step in range(1, steps + 1):
        node.step(policy, draw.choice(cells))
        if step % _LOOK_EVERY == 0:
            course.append((step, choices(policy, cells)))
    return course


def summary(course: list[tuple[int, Verdict]]) -> dict[str, float | int | None]:
    """Return how a policy did at first and at last, and from which step on it holds."""
    holds_from: int | None = None
    for step, verdict in reversed(course):
        if not verdict.holds:
            break
        holds_from = step
    return {
        "right_at_first": round(course[0][1].right, 3),
        "right_at_last": round(course[-1][1].right, 3),
        "worst_at_last": round(course[-1][1].worst, 3),
        "holds_from_step": holds_from,
    }


def main() -> None:
    """Measure and print."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--gpu", default="rtx-4090")
    parser.add_argument("--model", default="llama-3.1-8b", help="what the emulated GPU computes")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64")
    parser.add_argument("--contexts", default="64,256,1024")
    parser.add_argument("--most-kv-tokens", type=int, default=33_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sizes = [[int(n) for n in text.split(",")] for text in (arguments.batches, arguments.contexts)]
    cells = [
        Cell(batch, context)
        for batch in sizes[0]
        for context in sizes[1]
        if batch * (context + 16) <= arguments.most_kv_tokens
    ]
    results: dict[str, dict[str, float | int | None]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        run_dir = Path(folder)
        host = measure_host(run_dir, arguments.gpu)
        profile = emulated_profile(arguments.gpu, arguments.model, host)
        write_profile(run_dir / "profile.json", profile)
        with cell_node(
            run_dir,
            run_dir / "profile.json",
            most=max(sizes[0]),
            kv_tokens=arguments.most_kv_tokens,
            plan=node_plan(arguments.gpu),
        ) as node:
            before = first = sample(node, cells, arguments.rounds, profile)
            for name, (host_skew, gpu_skew) in _SKEWS.items():
                wrong = skewed(profile, host=host_skew, gpu=gpu_skew)
                course = learn(node, wrong, cells, arguments.steps, arguments.seed)
                after = sample(node, cells, arguments.rounds, profile)
                times = measured(before, after)
                results[name] = summary([(n, judge(chosen, times)) for n, chosen in course])
                results[name]["ties"] = sum(cell_times.tie for cell_times in times.values())
                before = after
                print(f"{name:20} {results[name]}", flush=True)
            times = measured(first, before)
            for cell, cell_times in times.items():
                local, assist = (1e3 * cell_times.times[route] for route in _ROUTES)
                print(f"{cell.batch:4} x {cell.context:5}: {local:7.2f}, assist {assist:7.2f}")
            misses = node.assisted.misses
    cells_ms = [
        [c.batch, c.context, *(round(1e3 * t.times[r], 3) for r in _ROUTES), t.tie]
        for c, t in times.items()
    ]
    facts = {"label": "emulated GPU", "gpu": arguments.gpu, "model": arguments.model}
    print(json.dumps(facts | {"cells": cells_ms, "assist_misses": misses, "policies": results}))


if __name__ == "__main__":
    main()
