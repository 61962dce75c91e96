"""Means over seeds, and our figures over those of the baselines."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualpace.lab.summary import Outcome

Row = dict[str, Any]


def means(outcomes: Sequence["Outcome"]) -> list[Row]:
    """Return one row per system and host: means over seeds, but the worst stall."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.case.system, outcome.case.host), []).append(outcome)
    return [_row(name, host, group) for (name, host), group in groups.items()]


def _row(name: str, host: str, group: Sequence["Outcome"]) -> Row:
    def mean(of: Callable[["Outcome"], float]) -> float | None:
        values = [of(outcome) for outcome in group]
        return None if any(map(math.isnan, values)) else sum(values) / len(values)

    def within(outcome: "Outcome") -> float:
        return outcome.within_itl.tokens_per_s if outcome.within_itl else math.nan

    def ttft(outcome: "Outcome") -> float:
        return outcome.at_itl_rate.ttft_p99_s if outcome.at_itl_rate else math.nan

    runs = [m for o in group for m in (o.saturated, o.at_itl_rate) if m is not None]
    return {
        "system": name,
        "host": host,
        "seeds": len(group),
        "rate_at_itl": mean(lambda o: o.rate_at_itl),
        "rate_at_tpot": mean(lambda o: o.rate_at_tpot),
        "tokens_per_s_within_itl": mean(within),
        "tokens_per_s_saturated": mean(lambda o: o.saturated.tokens_per_s),
        "itl_p99_s_saturated": mean(lambda o: o.saturated.itl_p99_s),
        "ttft_p99_s_at_itl_rate": mean(ttft),
        "longest_host_stall_s": max(m.longest_host_stall_s for m in runs),
        "most_host_steps_waited": max(m.most_host_steps_waited for m in runs),
    }


def ratios(rows: Sequence[Row], ours: str = "dualpace") -> list[Row]:
    """Return ours over each baseline. A baseline that uses no host counts for every host."""
    result = []
    for own in (row for row in rows if row["system"] == ours):
        for other in (row for row in rows if row["system"] != ours):
            if other["host"] != own["host"] and not other["system"].startswith("vllm"):
                continue
            result.append(
                {
                    "over": other["system"],
                    "host": own["host"],
                    **{key: _over(own, other, key) for key in _RATIOS},
                }
            )
    return result


_RATIOS = ("rate_at_itl", "rate_at_tpot", "tokens_per_s_within_itl", "tokens_per_s_saturated")


def _over(own: Row, other: Row, key: str) -> float | None:
    if own[key] is None or not other[key]:
        return None
    return float(own[key]) / float(other[key])
