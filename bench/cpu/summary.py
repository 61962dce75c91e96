"""Turns what was measured into rows, targets and a figure."""

import statistics
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from cpu.cells import Cell, Timing
from cpu.engines import OURS
from cpu.limits import Limits, least_step_ms
from cpu.store import Store
from cpu.targets import Target, reached

from dualpace.checkpoint import ModelConfig


def median_speed(timings: list[Timing]) -> float:
    """Return the median over all repeats of all rounds."""
    speeds: list[float] = [speed for timing in timings for speed in timing.tokens_per_s]
    return statistics.median(speeds)


def median_limits(limits: list[Limits]) -> Limits:
    """Return the medians over the moments at which limits were measured."""
    values = {}
    for name in (field.name for field in fields(Limits)):
        known = [value for value in (getattr(one, name) for one in limits) if value is not None]
        values[name] = statistics.median(known) if known else None
    return Limits(**values)  # type: ignore[arg-type]


def rows_of(store: Store, config: ModelConfig) -> list[dict[str, Any]]:
    """Return one row a format and cell that this engine was timed in."""
    limits = median_limits(store.limits)
    speeds = {key: median_speed(timings) for key, timings in store.timings.items()}
    rows = []
    for format_, cell in sorted(
        {(f, c) for engine, f, c in speeds if engine == OURS},
        key=lambda key: (key[0], key[1].context, key[1].batch),
    ):
        here = {e: speed for (e, f, c), speed in speeds.items() if (f, c) == (format_, cell)}
        peers = {engine: speed for engine, speed in here.items() if engine != OURS}
        best = max(peers, key=lambda engine: peers[engine], default=None)
        shares = shares_of_limits(config, limits, format_, store.timings[OURS, format_, cell], cell)
        rows.append(
            {
                "format": format_,
                **asdict(cell),
                "tokens_per_s": {engine: round(s, 1) for engine, s in here.items()},
                "best_peer": best,
                "ratio": round(here[OURS] / peers[best], 2) if best else None,
                "share_of_limit": shares,
            }
        )
    return rows


def targets_of(store: Store) -> list[Target]:
    """Return the targets that the store says something about."""
    return reached({key: median_speed(timings) for key, timings in store.timings.items()})


def shares_of_limits(
    config: ModelConfig, limits: Limits, format_: str, timings: list[Timing], cell: Cell
) -> dict[str, float]:
    """Return which share of the measured limits the products and attention reach."""
    stages = [t.stage_ms for t in timings if t.stage_ms is not None]
    if not stages:
        return {}
    least = least_step_ms(config, limits, batch=cell.batch, context=cell.context, format_=format_)
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
        f"{row['tokens_per_s']}, {row['ratio']} x the best peer, "
        f"of the limits {row['share_of_limit']}"
    )


def target_text(target: Target) -> str:
    """Return one line of the table of targets."""
    return (
        f"{target.name:>18} batch {target.batch:>3} context {target.context:>4}: "
        f"{target.ratio:5.2f} x {target.peer}, wanted {target.wanted}: "
        + ("met" if target.met else "NOT met")
    )


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
