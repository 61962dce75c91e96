"""Runs the cpu-engine and the installed peers on one model and format, and compares.

Engines take turns, round by round, so that each meets the same neighbours on the machine; figures
are medians over the rounds. Prints tokens per second, the ratio to the best peer, and which share
of the measured limits each stage reaches. The last line is one JSON object with all of it.
"""

import json
import os
import statistics
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from cpu.cells import Cell, Timing, parse_cells, read_timing
from cpu.limits import Limits, least_step_ms, measure_limits

from dualpace.checkpoint import ModelConfig, open_checkpoint
from dualpace.kernels import capabilities

HERE = Path(__file__).parent
OURS = "dualpace"
PEERS = {
    "openvino-genai": ("openvino", "openvino_peer.py", "openvino"),
    "transformers": ("transformers", "transformers_peer.py", "hf"),
}
"""Environment below the peers' folder, script, and form of the model."""


def parse_arguments() -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, required=True, help="folder of setup_peers.sh")
    parser.add_argument("--model", default="demo", choices=("demo", "random-1b"))
    parser.add_argument("--formats", default="float32,bfloat16,int8")
    parser.add_argument("--cells", default="1:128,8:128,32:128,1:1024,8:1024,32:1024")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    return parser.parse_args()


def run_engine(engine: str, format_: str, arguments: Namespace) -> list[Timing]:
    """Run one engine over all cells, once; nothing if it is not installed."""
    python, script, form = Path(sys.executable), HERE / "dualpace_engine.py", "hf"
    if engine != OURS:
        environment, name, form = PEERS[engine]
        python = arguments.peers / environment / "bin" / "python"
        script = HERE / "peers" / name
    if form == "openvino":
        weights = "int8" if format_ == "int8" else "fp32"
        model = arguments.peers / "models" / f"{arguments.model}-openvino-{weights}"
    else:
        model = arguments.peers / "models" / arguments.model
    if not python.exists() or not model.exists():
        return []
    command = [python, script, "--model", model, "--format", format_, "--cells", arguments.cells]
    command += ["--tokens", str(arguments.tokens), "--repeats", "1"]
    command += ["--threads", str(arguments.threads)]
    environ = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(arguments.threads),
        "PYTHONPATH": str(HERE.parent),
    }
    result = subprocess.run(  # noqa: S603
        list(map(str, command)), capture_output=True, text=True, check=False, env=environ
    )
    timings = [t for t in map(read_timing, result.stdout.splitlines()) if t is not None]
    if not timings:
        reason = result.stderr.strip().splitlines()[-1:] or ["no output"]
        print(f"  {engine} {format_}: {reason[0][:160]}", flush=True)
    return timings


def measure(arguments: Namespace) -> dict[tuple[str, str, Cell], list[Timing]]:
    """Run all engines in turn, round by round."""
    found: dict[tuple[str, str, Cell], list[Timing]] = {}
    formats = arguments.formats.split(",")
    pairs = [(engine, f) for f in formats for engine in (OURS, *PEERS)]
    missing: set[tuple[str, str]] = set()
    for number in range(arguments.rounds):
        for engine, format_ in pairs:
            if (engine, format_) in missing:
                continue
            timings = run_engine(engine, format_, arguments)
            if not timings:
                missing.add((engine, format_))
            for timing in timings:
                key = (engine, format_, Cell(timing.batch, timing.context))
                found.setdefault(key, []).append(timing)
        print(f"round {number + 1} of {arguments.rounds} done", flush=True)
    return found


def median_speed(timings: list[Timing]) -> float:
    """Return the median over all repeats of all rounds."""
    speeds: list[float] = [speed for timing in timings for speed in timing.tokens_per_s]
    return statistics.median(speeds)


def summarise(
    arguments: Namespace, limits: Limits, found: dict[tuple[str, str, Cell], list[Timing]]
) -> list[dict[str, object]]:
    """Return one row a format and cell, and print it."""
    config = open_checkpoint(arguments.peers / "models" / arguments.model).config
    rows: list[dict[str, object]] = []
    for format_ in arguments.formats.split(","):
        for cell in parse_cells(arguments.cells):
            speeds = {
                engine: median_speed(timings)
                for (engine, f, c), timings in found.items()
                if (f, c) == (format_, cell)
            }
            if OURS not in speeds:
                continue
            peers = {engine: s for engine, s in speeds.items() if engine != OURS}
            best = max(peers, key=lambda engine: peers[engine], default=None)
            shares = shares_of_limits(config, limits, format_, found[OURS, format_, cell], cell)
            row = {
                "format": format_,
                **asdict(cell),
                "tokens_per_s": {engine: round(s, 1) for engine, s in speeds.items()},
                "best_peer": best,
                "ratio": round(speeds[OURS] / peers[best], 2) if best else None,
                "share_of_limit": shares,
            }
            rows.append(row)
            print(row_text(row))
    return rows


def shares_of_limits(
    config: ModelConfig, limits: Limits, format_: str, timings: list[Timing], cell: Cell
) -> dict[str, float]:
    """Return which share of the measured limits the products and attention reach."""
    stages = [t.stage_ms for t in timings if t.stage_ms is not None]
    if not stages:
        return {}
    least = least_step_ms(
        config,
        limits,
        batch=cell.batch,
        context=cell.context,
        format_=format_,
    )
    products = statistics.median(
        s["pre_attention"] + s["post_attention"] + s["head"] for s in stages
    )
    attention = statistics.median(s["attention"] for s in stages)
    return {
        "products": round(least["products"] / products, 2),
        "attention": round(least["attention"] / attention, 2),
    }


def row_text(row: dict[str, object]) -> str:
    """Return one line of the table."""
    return (
        f"{row['format']:>9} batch {row['batch']:>3} context {row['context']:>4}: "
        f"{row['tokens_per_s']}, {row['ratio']} x the best peer, "
        f"of the limits {row['share_of_limit']}"
    )


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Draw tokens per second by cell, one panel a format. Needs matplotlib."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    formats = list(dict.fromkeys(str(row["format"]) for row in rows))
    figure, axes = plt.subplots(1, len(formats), figsize=(6 * len(formats), 4), squeeze=False)
    for axis, format_ in zip(axes[0], formats, strict=True):
        chosen = [row for row in rows if row["format"] == format_]
        labels = [f"{row['batch']}/{row['context']}" for row in chosen]
        speeds = [dict(row["tokens_per_s"]) for row in chosen]  # type: ignore[call-overload]
        for engine in dict.fromkeys(engine for speed in speeds for engine in speed):
            axis.plot(labels, [s.get(engine) for s in speeds], marker="o", label=engine)
        axis.set(title=format_, xlabel="batch / context", ylabel="tokens/s", yscale="log")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, print, and write what was asked for."""
    arguments = parse_arguments()
    limits = measure_limits(arguments.threads)
    print(
        f"{capabilities()}\nlimits of {arguments.threads} threads, measured: {limits}", flush=True
    )
    found = measure(arguments)
    again = measure_limits(arguments.threads)
    print(f"limits after the runs: {again}")
    rows = summarise(arguments, limits, found)
    result = {
        "model": arguments.model,
        "isa": capabilities().isa,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "limits": asdict(limits),
        "limits_after": asdict(again),
        "cells": rows,
    }
    if arguments.png:
        draw(rows, arguments.png)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
