"""What it costs host-resident requests to keep step with the device: real processes, emulated GPU.

    python bench/decoupling/run.py [--requests 60] [--rate 4] [--policies dualpace,lockstep]

Every policy serves the same requests at the same times: `dualpace` (two clocks), `lockstep` (the
same, but a host iteration starts with a device iteration and the next one waits for it, as in
systems where the host fills the device's gaps) and `gpu-only`. The cpu-engine computes for real;
the device waits as long as a preset's GPU would take. Inter-token times are those that clients see.
With `--profile`, a file in which this machine's host was measured (`dualpace profile`), the
simulator predicts the same run with the same schedulers, and the difference is printed. The last
line is one JSON object; times are seconds. All of it is emulated or simulated, and says so.
"""

import argparse
import asyncio
import dataclasses
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2

from dualpace.lab.simulation import simulate
from dualpace.lab.systems import Hardware, Options, dualpace
from dualpace.lab.workload import Arrival
from dualpace.profiles import read_profile, write_profile
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.profile import Profile
from dualpace.testing.served_node import ServedNode, served_node

_LOCKSTEP = {"DUALPACE_GPU_ENGINE_LOCKSTEP": "true", "DUALPACE_CPU_ENGINE_LOCKSTEP": "true"}
_POLICIES: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "dualpace": (("--placement=auto",), {}),
    "lockstep": (("--placement=auto",), _LOCKSTEP),
    "gpu-only": (("--placement=gpu",), {}),
}
_VOCABULARY = 49_000


@dataclass
class Outcome:
    """What a client saw of one request."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)
    on_host: int = 0

    @property
    def gaps_s(self) -> list[float]:
        """Times between tokens."""
        return [b - a for a, b in pairwise(self.token_s)]

    @property
    def host_resident(self) -> bool:
        """Whether nearly all of it was decoded on the host."""
        return self.on_host >= 0.9 * (len(self.token_s) - 1)


async def _ask(client: httpx2.AsyncClient, body: dict[str, Any], at_s: float) -> Outcome:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
    outcome = Outcome(time.monotonic())
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.monotonic()
            for choice in json.loads(line[6:])["choices"]:
                outcome.token_s += [now] * len(choice.get("token_ids") or ())
                told = choice.get("x_dualpace")
                if told is not None and "tokens" in told:
                    outcome.on_host = told["tokens"]["cpu"]
    return outcome


def _workload(arguments: argparse.Namespace) -> list[Arrival]:
    """Return the requests of a seed."""
    draw = random.Random(arguments.seed)  # noqa: S311 - a workload, the same in every run
    arrivals: list[Arrival] = []
    at_s = 0.0
    for index in range(arguments.requests):
        at_s += draw.expovariate(arguments.rate)
        arrivals.append(Arrival(index, at_s, draw.randint(200, 1000), draw.randint(40, 120)))
    return arrivals


async def _load(url: str, arrivals: Sequence[Arrival]) -> list[Outcome]:
    """Send the requests at their times."""
    begin_s, tasks = time.monotonic() + 0.5, []
    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:
        for arrival in arrivals:
            draw = random.Random(arrival.request_id)  # noqa: S311
            at_s = begin_s + arrival.arrival_s
            body = {
                "prompt": [draw.randrange(_VOCABULARY) for _ in range(arrival.prompt_tokens)],
                "max_tokens": arrival.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "return_token_ids": True,
                "x_dualpace": True,
            }
            tasks.append(asyncio.create_task(_ask(client, body, at_s)))
        return list(await asyncio.gather(*tasks))


def _p99(values: Sequence[float]) -> float | None:
    ordered = sorted(values)
    return round(ordered[int(len(ordered) * 0.99)], 4) if ordered else None


def _measured(outcomes: Sequence[Outcome], node: ServedNode) -> dict[str, Any]:
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
        "host_iterations": node.gauges()["cpu", "steps_total"],
    }


def _predicted(
    profile: Profile, arrivals: Sequence[Arrival], device_blocks: int, host_blocks: int
) -> dict[str, float]:
    """Simulate the same requests on the same blocks, by the same schedulers."""

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Measured(Hardware):
        def costs(self) -> NodeCosts:
            return NodeCosts(profile)

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


def _profile(arguments: argparse.Namespace) -> Profile:
    """Return a preset's GPU, beside the measured host if there is one."""
    preset = preset_profile(arguments.gpu, "xeon-4510-120", arguments.model)
    if arguments.profile is None:
        return preset
    return dataclasses.replace(
        read_profile(Path(arguments.profile)),
        gpu_name=preset.gpu_name,
        gpu=preset.gpu,
        gpu_prefill_attention=preset.gpu_prefill_attention,
    )


def _run(policy: str, arguments: argparse.Namespace, profile: Path) -> dict[str, Any]:
    flags, env = _POLICIES[policy]
    arrivals = _workload(arguments)
    common = (
        f"--device=emulated:{profile}",
        f"--device-kv-mib={arguments.device_kv_mib}",
        f"--arena-mib={arguments.arena_mib}",
        "--max-model-len=2048",
    )
    with served_node("demo", *common, *flags, env=env) as node:
        asyncio.run(_load(node.url, arrivals[:4]))
        measured = _measured(asyncio.run(_load(node.url, arrivals)), node)
        blocks = [int(node.gauges()[engine, "total_blocks"]) for engine in ("gpu", "cpu")]
    if policy == "dualpace" and arguments.profile is not None:
        predicted = _predicted(read_profile(profile), arrivals, *blocks)
        measured["simulated"] = predicted
        measured["over_simulated"] = {
            name: round(measured[name] / value, 3) for name, value in predicted.items()
        }
    return measured


def main() -> None:
    """Measure and print."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", default="rtx-4090")
    parser.add_argument("--model", default="llama-3.1-8b", help="what the emulated GPU computes")
    parser.add_argument("--profile", help="in which this machine's host was measured")
    parser.add_argument("--device-kv-mib", type=int, default=112)
    parser.add_argument("--arena-mib", type=int, default=1024)
    parser.add_argument("--policies", default=",".join(_POLICIES))
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.json"
        write_profile(profile, _profile(arguments))
        for policy in arguments.policies.split(","):
            results[policy] = _run(policy, arguments, profile)
            print(f"{policy:9} {results[policy]}", flush=True)
    ours, gated = results.get("dualpace"), results.get("lockstep")
    if ours and gated and ours["host_p99_itl"] and gated["host_p99_itl"]:
        ratio = round(ours["host_p99_itl"] / gated["host_p99_itl"], 3)
        stall = round(ours["host_longest_stall"] / ours["host_mean_itl"], 2)
        print(f"host P99 ITL, decoupled over lockstep: {ratio}; longest stall: {stall} mean ITLs")
        results |= {"host_p99_itl_ratio": ratio, "longest_stall_in_mean_itls": stall}
    facts = {"label": "emulated GPU", "gpu": arguments.gpu, "model": arguments.model}
    print(json.dumps(results | facts | {"seed": arguments.seed, "rate": arguments.rate}))


if __name__ == "__main__":
    main()
