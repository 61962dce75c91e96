"""Turns what was measured into rows, targets and a figure."""

import statistics
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from cpu.cells import Cell, Timing
from cpu.engines import OURS
from cpu.limits import Limits, combined, least_step_ms, most_tokens_per_s
from cpu.store import Store
from cpu.targets import Most, Target, ratio_of, reached

from dualpace.checkpoint import ModelConfig


def speeds_of(timings: list[Timing]) -> list[float]:
    """Return the median of each round's repeats."""
    return [statistics.median(timing.tokens_per_s) for timing in timings]


def rows_of(store: Store, config: ModelConfig) -> list[dict[str, Any]]:
    """Return one row a format and cell that this engine was timed in."""
    cells = {(format_, cell) for engine, format_, cell in store.timings if engine == OURS}
    ordered = sorted(cells, key=lambda key: (key[0], key[1].context, key[1].batch))
    return [_row(store, config, format_, cell) for format_, cell in ordered]


def _row(store: Store, config: ModelConfig, format_: str, cell: Cell) -> dict[str, Any]:
    timings = {e: t for (e, f, c), t in store.timings.items() if (f, c) == (format_, cell)}
    rounds = {engine: speeds_of(found) for engine, found in timings.items()}
    speeds = {engine: statistics.median(found) for engine, found in rounds.items()}
    ratios = {engine: ratio_of(rounds[OURS], found) for engine, found in rounds.items()}
    best = min(ratios.keys() - {OURS}, key=lambda engine: ratios[engine], default=None)
    reach = best and bound_of(store, config)(format_, cell) / speeds[best]
    return {
        "format": format_,
        **asdict(cell),
        "tokens_per_s": {engine: round(speed, 1) for engine, speed in speeds.items()},
        "rounds": {engine: len(found) for engine, found in timings.items()},
        "avx512_seen": [e for e, found in timings.items() if any(t.avx512 for t in found)],
        "best_peer": best,
        "ratio": round(ratios[best], 2) if best else None,
        "reach": round(reach, 2) if reach else None,
        "share_of_limit": shares_of_limits(store, config, format_, cell),
    }


def bound_of(store: Store, config: ModelConfig) -> Most:
    """Return the most that this engine could do in a cell it was timed in.

    By the limits that were measured around its timings.
    """

    def most(format_: str, cell: Cell) -> float:
        limits = combined(store.limits_around(OURS, format_, cell), statistics.median)
        return most_tokens_per_s(config, limits, **asdict(cell), format_=format_)

    return most


def targets_of(store: Store, config: ModelConfig) -> list[Target]:
    """Return the targets that the store says something about."""
    speeds = {key: speeds_of(timings) for key, timings in store.timings.items()}
    return reached(speeds, bound_of(store, config))


def shares_of_limits(
    store: Store, config: ModelConfig, format_: str, cell: Cell
) -> dict[str, float]:
    """Return which share of the measured limits the products and attention reach."""
    timings = store.timings[OURS, format_, cell]
    stages = [t.stage_ms for t in timings if t.stage_ms is not None]
    if not stages:
        return {}
    limits = combined(store.limits_around(OURS, format_, cell), statistics.median)
    least = least_step_ms(config, limits, **asdict(cell), format_=format_)
    products = statistics.median(
        s["pre_attention"] + s["post_attention"] + s["head"] for s in stages
    )
    attention = statistics.median(s["attention"] for s in stages)
    return {
        "products": round(least["products"] / products, 2),
        "attention": round(least["attention"] / attention, 2),
    }


def row_text(row: dict[str, Any]) -> str:
    """Return one line of the table."""
    return (
        f"{row['format']:>9} batch {row['batch']:>3} context {row['context']:>4}: "
        f"{row['tokens_per_s']}, {row['ratio']} x the best peer (reach {row['reach']}), "
        f"of the limits {row['share_of_limit']}"
    )


def target_text(target: Target) -> str:
    """Return one line of the table of targets."""
    line = (
        f"{target.name:>18} batch {target.batch:>3} context {target.context:>4}: "
        f"{target.ratio:5.2f} x {target.peer}, wanted {target.wanted}: "
    )
    if target.met:
        return line + "met"
    return line + f"NOT met; this machine's limits allow {target.reach:.2f}"


def target_record(target: Target) -> dict[str, Any]:
    """Return the target for JSON."""
    derived = {"ratio": round(target.ratio, 2), "met": target.met, "reach": round(target.reach, 2)}
    return asdict(target) | derived


def free_of_cap(store: Store) -> list[str]:
    """Return the engines, each with a format, that were seen to use AVX-512."""
    timings = (timing for found in store.timings.values() for timing in found)
    return sorted({f"{timing.engine} {timing.format}" for timing in timings if timing.avx512})


def limits_text(limits: list[Limits]) -> str:
    """Return one line: between what values each limit was found."""
    parts = []
    for field in fields(Limits):
        known = [v for v in (getattr(one, field.name) for one in limits) if v is not None]
        if known:
            parts.append(f"{field.name} {min(known):.0f} to {max(known):.0f}")
    return f"limits, measured {len(limits)} times: {', '.join(parts)}"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw tokens per second by cell, one panel a format. Needs matplotlib."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    formats = list(dict.fromkeys(row["format"] for row in rows))
    figure, axes = plt.subplots(1, len(formats), figsize=(6 * len(formats), 4), squeeze=False)
    for axis, format_ in zip(axes[0], formats, strict=True):
        chosen = [row for row in rows if row["format"] == format_]
        labels = [f"{row['batch']}/{row['context']}" for row in chosen]
        speeds = [row["tokens_per_s"] for row in chosen]
        for engine in dict.fromkeys(engine for speed in speeds for engine in speed):
            axis.plot(labels, [s.get(engine) for s in speeds], marker="o", label=engine)
        axis.set(title=format_, xlabel="batch / context", ylabel="tokens/s", yscale="log")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
