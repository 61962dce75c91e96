"""What the comparison is to show, what it shows, and what it could show at best.

Goals are those of the project for Azure's conversation trace on a 4090, by host. The best that is
possible is a bound of `bounds` over what the baseline reached; it says how much of a goal that was
missed could be had at all. It knows results, not runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dualpace.lab.bounds import Bound, Resources, mix_of, throughput, ttft_p99_s
from dualpace.lab.systems import BLOCK_SIZE, Hardware
from dualpace.lab.workload import Lengths

Row = dict[str, Any]

HOSTS = ("xeon-4510-120", "xeon-4510-180")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A least ratio of ours to a baseline's, for each of `HOSTS`."""

    measure: str
    over: str
    least: tuple[float, float]


GOALS = (
    Goal(measure="rate_at_itl", over="neo", least=(1.6, 1.6)),
    Goal(measure="rate_at_itl", over="neo-measured", least=(1.45, 1.45)),
    Goal(measure="tokens_per_s_saturated", over="vllm", least=(1.55, 1.9)),
    Goal(measure="tokens_per_s_saturated", over="vllm-defaults", least=(1.25, 1.5)),
    Goal(measure="tokens_per_s_saturated", over="neo", least=(1.35, 1.5)),
)
TTFT_RATIO = 1.1
HOST_STEPS_WAITED = 2


def bounds_of(
    hardware: Hardware, lengths: Sequence[Lengths], itl_target_s: float, hosts: Sequence[str]
) -> list[Row]:
    """Return the best that is possible on each host; `alone`: without one."""
    rows = []
    for name, host in ((None, hosts[0]), *((host, host) for host in hosts)):
        node = Resources(
            costs=replace(hardware, host=host).costs(),
            device_tokens=hardware.device_blocks * BLOCK_SIZE,
            host_tokens=hardware.host_blocks * BLOCK_SIZE if name else 0,
            itl_target_s=itl_target_s,
        )
        best = throughput(node, mix_of(lengths))
        lent = throughput(replace(node, weights_read=True), mix_of(lengths))
        rows.append(_bound_row(name or "alone", best, lent, ttft_p99_s(node, lengths)))
    return rows


def _bound_row(host: str, best: Bound, lent: Bound, ttft_s: float) -> Row:
    return {
        "host": host,
        "tokens_per_s": best.tokens_per_s,
        "requests_per_s": best.requests_per_s,
        "tokens_per_s_weights_read": lent.tokens_per_s,
        "device_rows": best.device_rows,
        "host_rows": best.host_rows,
        "prompt_rows": best.prompt_rows,
        "device_step_s": best.device_step_s,
        "host_step_s": best.host_step_s,
        "ttft_p99_s": ttft_s,
    }


def goals_of(systems: Sequence[Row], bounds: Sequence[Row], ttft: Sequence[Row]) -> list[Row]:
    """Return goal, result and bound for each goal whose systems and host were run."""
    found = {(row["system"], row["host"]): row for row in systems}
    best = {row["host"]: row for row in bounds}
    rows = []
    for index, host in enumerate(HOSTS):
        ours = found.get(("dualpace", host))
        if ours is None:
            continue
        for goal in GOALS:
            alone = goal.over.startswith("vllm")
            theirs = [
                row
                for (name, on), row in found.items()
                if name == goal.over and (alone or on == host)
            ]
            if theirs and theirs[0][goal.measure]:
                rows.append(_ratio(goal, index, ours, theirs[0], best[host]))
        rows += _latencies(ours, best[host], [row for row in ttft if row["host"] == host])
    return rows


def _ratio(goal: Goal, index: int, ours: Row, theirs: Row, best: Row) -> Row:
    possible = best["requests_per_s" if goal.measure == "rate_at_itl" else "tokens_per_s"]
    reached = ours[goal.measure] / theirs[goal.measure]
    return {
        "goal": f"{goal.measure} over {goal.over}",
        "host": HOSTS[index],
        "wanted": f">= {goal.least[index]}",
        "reached": reached,
        "possible": possible / theirs[goal.measure],
        "met": reached >= goal.least[index],
    }


def _latencies(ours: Row, best: Row, ttft: Sequence[Row]) -> list[Row]:
    rows = [
        {
            "goal": "host steps waited for a token",
            "host": ours["host"],
            "wanted": f"<= {HOST_STEPS_WAITED}",
            "reached": ours["most_host_steps_waited"],
            "possible": 1,
            "met": ours["most_host_steps_waited"] <= HOST_STEPS_WAITED,
        }
    ]
    if ttft:
        mean = sum(row["ratio"] for row in ttft) / len(ttft)
        neo = sum(row["neo"] for row in ttft) / len(ttft)
        rows.append(
            {
                "goal": "ttft_p99_s over neo at its rate",
                "host": ours["host"],
                "wanted": f"<= {TTFT_RATIO}",
                "reached": mean,
                "possible": best["ttft_p99_s"] / neo,
                "met": mean <= TTFT_RATIO,
            }
        )
    return rows
