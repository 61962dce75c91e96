"""Results as text for a terminal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dualpace.lab.metrics import Metrics
from dualpace.lab.systems import Hardware


def metrics_text(name: str, hardware: Hardware, seed: int, commit: str, metrics: Metrics) -> str:
    """Return one run."""
    title = (
        f"simulated: {name} on {hardware.gpu} + {hardware.host}, {hardware.model}, "
        f"seed {seed}, commit {commit}"
    )
    width = max(map(len, metrics.as_dict()))
    lines = [f"  {key:{width}}  {_number(value)}" for key, value in metrics.as_dict().items()]
    return "\n".join([title, *lines])


def summary_text(document: Mapping[str, Any]) -> str:
    """Return the comparison."""
    plan = document["plan"]
    title = (
        f"simulated: {plan['gpu']}, {plan['model']}, {plan['device_blocks']} device blocks, "
        f"{plan['requests']} requests of {plan['workload']}, seeds {plan['seeds']}, "
        f"commit {document['commit']}\n"
        f"sustained: P99 ITL <= {plan['itl_p99_target_s']} s (or P99 TPOT <= "
        f"{plan['tpot_p99_target_s']} s), P99 TTFT <= {plan['ttft_p99_limit_s']} s"
    )
    tables = [title, _table(document["systems"])]
    if document["ratios"]:
        tables.append("dualpace over")
        tables.append(_table(document["ratios"]))
    if document["ttft_p99_s_at_neo_rate"]:
        tables.append("P99 TTFT at the rate that neo sustains, s")
        tables.append(_table(document["ttft_p99_s_at_neo_rate"]))
    tables.append("at best: no policy that mixes requests of all lengths on both sides does better")
    tables.append(_table(document["bounds"]))
    if document["goals"]:
        tables.append("goals, and what is possible at best")
        tables.append(_table(document["goals"]))
    if document["code_trace"]:
        tables.append(_code_text(document["code_trace"]))
    return "\n\n".join(tables)


def _code_text(code: Mapping[str, Any]) -> str:
    title = (
        f"{code['workload']}, {code['ours']} beside {code['theirs']} at equal rates; "
        f"worse by {code['allowed']:.0%} is allowed: {'met' if code['met'] else 'not met'}"
    )
    worst = [{"measure": key, "worst": f"{value:+.1%}"} for key, value in code["worst"].items()]
    return "\n\n".join([title, _table(worst), _table(code["rates"])])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    keys = list(rows[0])
    cells = [keys, *([_number(row[key]) for key in keys] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(keys))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def _number(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
