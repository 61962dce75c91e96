"""What it costs host-resident requests to keep step with the device: real processes, emulated GPU.

    PYTHONPATH=bench python -m decoupling.run [--requests 60] [--rate 4] [--policies dualpace]

Every policy serves the same requests at the same times: `dualpace` (two clocks), `lockstep` (the
same, but a host iteration starts with a device iteration and the next one waits for it, as in
systems where the host fills the device's gaps) and `gpu-only`. The cpu-engine computes for real;
the device waits as long as a preset's GPU would take. Inter-token times are those that clients see;
stalls are the longest waits for a token of the host's, told in host iterations, by the engines' own
records and by what clients saw. Threads are pinned to the plan of `dualpace serve`; clients share
the gateway's cores, and go before all others there. Before each policy the host's cores are
measured (`dualpace profile`); by that the simulator predicts the same run with the same schedulers,
and the difference is printed. The last line is one JSON object; times are seconds. All of it is
emulated or simulated, and says so.
"""

import argparse
import dataclasses
import json
import signal
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from decoupling.load import Outcome, poisson_arrivals, serve_all
from decoupling.neighbours import Neighbours
from decoupling.profiles import emulated_profile, measure_host, node_plan

from dualpace.core.iteration_log import read_iterations
from dualpace.lab.iterations import HostIterations, HostWait, host_waits, over_predicted
from dualpace.lab.simulation import simulate
from dualpace.lab.systems import Hardware, Options, dualpace
from dualpace.lab.workload import Arrival
from dualpace.profiles import read_profile, write_profile
from dualpace.scheduling.cost import NodeCosts
from dualpace.testing.served_node import served_node

_LOCKSTEP = {"DUALPACE_GPU_ENGINE_LOCKSTEP": "true", "DUALPACE_CPU_ENGINE_LOCKSTEP": "true"}
_POLICIES: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "dualpace": (("--placement=auto",), {}),
    "lockstep": (("--placement=auto",), _LOCKSTEP),
    "gpu-only": (("--placement=gpu",), {}),
}


_SAME = 1.15
"""Times of the same work that differ by less may be of the same machine in the same state."""


def _p99(values: Sequence[float]) -> float | None:
    ordered = sorted(values)
    return round(ordered[int(len(ordered) * 0.99)], 4) if ordered else None


def _measured(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    begin = min(o.sent_s for o in outcomes)
    end = max(o.token_s[-1] for o in outcomes)
    hosted = [o for o in outcomes if o.host_resident]
    gaps = [gap for o in hosted for gap in o.gaps_s]
    mean_step_s = statistics.mean(gaps) if gaps else None
    return {
        "requests": len(outcomes),
        "host_resident": len(hosted),
        "tokens_per_s": round(sum(len(o.token_s) for o in outcomes) / (end - begin), 2),
        "p99_ttft": _p99([o.token_s[0] - o.sent_s for o in outcomes]),
        "mean_tpot": round(statistics.mean(g for o in outcomes for g in o.gaps_s), 4),
        "host_p99_itl": _p99(gaps),
        "host_mean_itl": None if mean_step_s is None else round(mean_step_s, 4),
        "host_longest_stall": round(max(gaps), 4) if gaps else None,
    }


def _recorded(
    outcomes: Sequence[Outcome], logs: Mapping[str, Path], costs: NodeCosts
) -> dict[str, Any]:
    """Return what the engines' records say of the time since the first of these requests."""
    begin_s = min(o.sent_s for o in outcomes)
    gpu, host = (
        [i for i in read_iterations(logs[engine]) if i.begin_s >= begin_s]
        for engine in ("gpu", "cpu")
    )
    if not host:
        return {"host_iterations": 0}
    table, waits = HostIterations(host), host_waits(gpu, host)
    seen = [gap for o in outcomes for gap in o.host_gaps]
    counts = Counter(wait.iterations for wait in waits)
    return {
        "host_iterations": len(host),
        "host_mean_iteration": round(statistics.mean(i.end_s - i.begin_s for i in host), 4),
        "waits_by_iterations": dict(sorted(counts.items())),
        "longest_wait": round(max(wait.seconds for wait in waits), 4),
        "longest_wait_in_iterations": _most_iterations(table, [_span(w) for w in waits]),
        "longest_move_in_iterations": _most_iterations(table, [_span(w) for w in waits if w.moved]),
        "longest_stall_in_iterations": _most_iterations(table, seen),
        "most_beyond_two_iterations": round(max(table.beyond_two(*_span(w)) for w in waits), 4),
        "host_over_profile": _rounded(
            over_predicted(host, lambda i: costs.host.step_s(i.rows, i.kv_tokens))
        ),
    }


def _span(wait: HostWait) -> tuple[float, float]:
    return wait.begin_s, wait.end_s


def _most_iterations(table: HostIterations, spans: Sequence[tuple[float, float]]) -> float | None:
    return _rounded(max((table.in_iterations(*span) for span in spans), default=None))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _predicted(
    node_costs: NodeCosts, arrivals: Sequence[Arrival], device_blocks: int, host_blocks: int
) -> dict[str, float]:
    """Simulate the same requests on the same blocks, by the same schedulers."""

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Measured(Hardware):
        def costs(self, *, loss_ms: float = 0.0) -> NodeCosts:
            assert loss_ms == 0.0, "what was measured has its losses in it"
            return node_costs

    hardware = Measured(device_blocks=device_blocks, host_blocks=host_blocks)
    options = Options(assist=False, itl_target_s=None)
    tracks = simulate(dualpace(options), arrivals, hardware).tracks.values()
    times = [track.times_s for track in tracks]
    gaps = [b - a for t in times for a, b in pairwise(t)]
    span_s = max(t[-1] for t in times) - min(a.arrival_s for a in arrivals)
    return {
        "tokens_per_s": round(sum(map(len, times)) / span_s, 2),
        "mean_tpot": round(statistics.mean(gaps), 4),
    }


def _run(policy: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    flags, env = _POLICIES[policy]
    arrivals = poisson_arrivals(arguments.requests, arguments.rate, arguments.seed)
    profile = folder / "profile.json"
    measured_host = measure_host(folder, arguments.gpu)
    write_profile(profile, emulated_profile(arguments.gpu, arguments.model, measured_host))
    logs = {engine: folder / f"{policy}-{engine}.jsonl" for engine in ("gpu", "cpu")}
    common = (
        f"--device=emulated:{profile}",
        f"--device-kv-mib={arguments.device_kv_mib}",
        f"--arena-mib={arguments.arena_mib}",
        "--max-model-len=2048",
    )
    records = {f"DUALPACE_{e.upper()}_ENGINE_ITERATION_LOG": str(log) for e, log in logs.items()}
    with served_node("demo", *common, *flags, env={**env, **records}) as node:
        cpus = node_plan(arguments.gpu).gateway.cpus
        serve_all(node.url, arrivals[:4], cpus)
        supervisor = psutil.Process(node.process.pid)
        neighbours = Neighbours([*node.services().values(), supervisor, psutil.Process()])
        served = serve_all(node.url, arrivals, cpus)
        others = neighbours.share()
        times = json.dumps([dataclasses.asdict(outcome) for outcome in served.outcomes])
        (folder / f"{policy}-clients.json").write_text(times)
        blocks = [int(node.gauges()[engine, "total_blocks"]) for engine in ("gpu", "cpu")]
    costs = NodeCosts(read_profile(profile))
    measured = _measured(served.outcomes) | _recorded(served.outcomes, logs, costs)
    measured |= {
        "cpu_share_of_others": round(others, 3),
        "clients_first": served.clients_first,
    }
    if policy == "dualpace":
        predicted = _predicted(costs, arrivals, *blocks)
        measured["simulated"] = predicted
        measured["over_simulated"] = {
            name: round(measured[name] / value, 3) for name, value in predicted.items()
        }
    return measured


def _warn_of_disturbance(policy: str, measured: Mapping[str, Any]) -> None:
    """Say so where the machine was not the same when its host was measured and when it served."""
    over_profile = measured.get("host_over_profile")
    if over_profile is not None and not 1 / _SAME < over_profile < _SAME:
        print(f"{policy}: the host took {over_profile} times as long as it was measured to take a")
        print("moment before: others were using the machine, compare nothing with these figures")


def main() -> None:
    """Measure and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and stop the node on the way out
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", default="rtx-4090")
    parser.add_argument("--model", default="llama-3.1-8b", help="what the emulated GPU computes")
    parser.add_argument("--device-kv-mib", type=int, default=112)
    parser.add_argument("--arena-mib", type=int, default=1024)
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder for the profile, the engines' records and the clients' times",
    )
    parser.add_argument("--policies", default=",".join(_POLICIES))
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        for policy in arguments.policies.split(","):
            results[policy] = _run(policy, arguments, folder)
            print(f"{policy:9} {results[policy]}", flush=True)
            _warn_of_disturbance(policy, results[policy])
    ours, gated = results.get("dualpace"), results.get("lockstep")
    if ours and gated and ours["host_p99_itl"] and gated["host_p99_itl"]:
        ratio = round(ours["host_p99_itl"] / gated["host_p99_itl"], 3)
        wait, seen = ours["longest_wait_in_iterations"], ours["longest_stall_in_iterations"]
        print(f"host P99 ITL, decoupled over lockstep: {ratio}")
        print(f"longest stall, in host iterations: {wait} by the engines' records, {seen} as seen")
        results |= {"host_p99_itl_ratio": ratio}
    facts = {
        "label": "emulated GPU",
        "gpu": arguments.gpu,
        "model": arguments.model,
        "cores": str(node_plan(arguments.gpu)),
    }
    print(json.dumps(results | facts | {"seed": arguments.seed, "rate": arguments.rate}))


if __name__ == "__main__":
    main()
