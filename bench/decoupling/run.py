"""What it costs host-resident requests to keep step with the device: real processes, emulated GPU.

    python bench/decoupling/run.py [--requests 60] [--rate 4] [--policies dualpace,lockstep]

Every policy serves the same requests at the same times: `dualpace` (two clocks), `lockstep` (the
same, but a host iteration starts with a device iteration and the next one waits for it, as in
systems where the host fills the device's gaps) and `gpu-only`. The cpu-engine computes for real;
the device waits as long as a preset's GPU would take. Inter-token times are those that clients see.
The last line is one JSON object; times are seconds. All of it is emulated, and says so.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from dualpace.profiles import write_profile
from dualpace.scheduling.presets import preset_profile
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
        return [b - a for a, b in zip(self.token_s, self.token_s[1:], strict=False)]

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


async def _load(url: str, arguments: argparse.Namespace) -> list[Outcome]:
    """Send the requests of a seed; the same ones whatever the policy."""
    draw = random.Random(arguments.seed)  # noqa: S311 - a workload, the same in every run
    at_s, tasks = time.monotonic() + 0.5, []
    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:
        for _ in range(arguments.requests):
            at_s += draw.expovariate(arguments.rate)
            prompt = [draw.randrange(_VOCABULARY) for _ in range(draw.randint(200, 1000))]
            body = {
                "prompt": prompt,
                "max_tokens": draw.randint(40, 120),
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


def _run(policy: str, arguments: argparse.Namespace, profile: Path) -> dict[str, Any]:
    flags, env = _POLICIES[policy]
    common = (
        f"--device=emulated:{profile}",
        f"--device-kv-mib={arguments.device_kv_mib}",
        f"--arena-mib={arguments.arena_mib}",
        "--max-model-len=2048",
    )
    with served_node("demo", *common, *flags, env=env) as node:
        asyncio.run(_load(node.url, argparse.Namespace(**vars(arguments) | {"requests": 4})))
        return _measured(asyncio.run(_load(node.url, arguments)), node)


def main() -> None:
    """Measure and print."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", default="rtx-4090")
    parser.add_argument("--model", default="llama-3.1-8b", help="what the emulated GPU computes")
    parser.add_argument("--device-kv-mib", type=int, default=112)
    parser.add_argument("--arena-mib", type=int, default=1024)
    parser.add_argument("--policies", default=",".join(_POLICIES))
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.json"
        write_profile(profile, preset_profile(arguments.gpu, "xeon-4510-120", arguments.model))
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
