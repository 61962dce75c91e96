"""Measures paged decode attention against its roofline, its growth, and vLLM's kernel.

The roofline of a cell is the lower of two rates of the same run: a plain read of the KV pool, and
attention's multiply-adds, widening included, out of the first cache. `--growth` times calls over a
range of contexts and batches and tells how far each is from a straight line; `--peers` is the
folder of bench/cpu/setup_peers.sh, where vLLM's kernel is then timed in turn with ours. The last
line is JSON. Figures are measured, never modelled; compare only figures of one run.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from attention_cell import DTYPES, Cell, Result, measure

from dualpace.kernels import capabilities

CONTEXTS = (256, 512, 1024, 2048, 4096)
BATCHES = (2, 4, 8, 16, 32, 64)
PEER = Path(__file__).parent.parent / "cpu" / "peers" / "vllm_attention.py"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", nargs="+", default=["8/8", "9/3", "32/8", "64/8"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=DTYPES)
    parser.add_argument("--isa", nargs="+", default=[capabilities().isa])
    parser.add_argument("--block-order", default="shuffled", choices=["shuffled", "contiguous"])
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--pool-mib", type=int, default=512, help="KV that is read in turn")
    parser.add_argument("--growth", action="store_true", help="time contexts and batches as well")
    parser.add_argument("--peers", type=Path, help="folder with vLLM's environment")
    parser.add_argument("--png", type=Path)
    return parser.parse_args()


def cells_of(arguments: argparse.Namespace) -> list[Cell]:
    """Return every combination that was asked for."""
    return [
        Cell(
            isa=isa,
            heads=heads,
            dtype=dtype,
            head_dim=arguments.head_dim,
            block_size=arguments.block_size,
            block_order=arguments.block_order,
            batch=arguments.batch,
            context=arguments.context,
            threads=arguments.threads,
        )
        for isa, heads, dtype in itertools.product(arguments.isa, arguments.heads, arguments.dtypes)
    ]


def peer_rate(cell: Cell, arguments: argparse.Namespace) -> float | str:
    """Return GB of KV per second of vLLM's kernel, or why there is none."""
    python = arguments.peers / "vllm" / "bin" / "python"
    if not python.exists():
        missing = arguments.peers / "vllm.missing"
        return missing.read_text(encoding="utf-8").strip() if missing.exists() else "not set up"
    command = [python, PEER, cell.heads, cell.dtype, cell.head_dim, cell.batch, cell.context]
    command += [cell.threads, arguments.pool_mib, arguments.repeats, cell.isa]
    result = subprocess.run(  # noqa: S603
        list(map(str, command)), capture_output=True, text=True, check=False
    )
    rates = [line for line in result.stdout.splitlines() if line.startswith("RATE ")]
    if not rates:
        return (result.stderr.strip().splitlines()[-1:] or ["no output"])[0][:160]
    return float(rates[0].removeprefix("RATE "))


def compare(cell: Cell, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure a cell, ours before and after the peer's, and print its line."""
    size = arguments.pool_mib << 20
    first = measure(cell, size, arguments.repeats)
    row: dict[str, Any] = asdict(cell) | asdict(first) | {"share": round(first.share, 3)}
    text = row_text(cell, first)
    if arguments.peers:
        peer = peer_rate(cell, arguments)
        again = measure(cell, size, arguments.repeats)
        row["kv_gb_per_s_again"] = again.kv_gb_per_s
        row["vllm"] = peer
        if isinstance(peer, float):
            ratio = statistics.mean([first.kv_gb_per_s, again.kv_gb_per_s]) / peer
            row["ratio_to_vllm"] = round(ratio, 2)
            text += f" | {peer:6.2f} | {ratio:5.2f}"
        else:
            text += f" | vLLM: {peer}"
    print(text, flush=True)
    return row


def row_text(cell: Cell, result: Result) -> str:
    """Return one line of the table."""
    return (
        f"{cell.isa:>10} {cell.heads:>5} {cell.dtype:>8} | {result.kv_gb_per_s:6.2f} | "
        f"{result.read_limit_gb_per_s:6.2f} | {result.arithmetic_limit_gb_per_s:6.1f} | "
        f"{result.share:5.2f} | {result.call_us:9.1f}"
    )


def growth(cell: Cell, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time one shape over contexts and over batches; microseconds a call."""
    size, repeats = arguments.pool_mib << 20, arguments.repeats

    def time_of(changed: Cell) -> float:
        return float(measure(changed, size, repeats).call_us)

    contexts = {n: time_of(replace(cell, context=n)) for n in CONTEXTS}
    batches = {n: time_of(replace(cell, batch=n)) for n in BATCHES}
    found = {"isa": cell.isa, "heads": cell.heads, "dtype": cell.dtype}
    curves = {
        "context": {"call_us": contexts, "off_line": worst_deviation(contexts)},
        "batch": {"call_us": batches, "off_line": worst_deviation(batches)},
    }
    for axis, curve in curves.items():
        print(f"{cell.isa} {cell.heads} {cell.dtype}: {axis} {curve}", flush=True)
    return found | curves


def worst_deviation(times: dict[int, float]) -> float:
    """Return the largest relative distance from the best line through the origin.

    The best is that of the median time per unit, so that no one point sets it.
    """
    slope = statistics.median(t / n for n, t in times.items())
    return round(max(abs(t / (slope * n) - 1) for n, t in times.items()), 3)


def draw(curves: list[dict[str, Any]], path: Path) -> None:
    """Draw time against context and against batch. Needs matplotlib."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, 2, figsize=(12, 4.5))
    for axis, name in zip(axes, ("context", "batch"), strict=True):
        for curve in curves:
            times = curve[name]["call_us"]
            label = f"{curve['isa']} {curve['heads']} {curve['dtype']}"
            axis.plot(list(times), list(times.values()), marker="o", label=label)
        axis.set(xlabel=name, ylabel="microseconds a call (measured)", xlim=0, ylim=0)
        axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure every cell; print a table and one line of JSON."""
    arguments = parse_arguments()
    print(capabilities())
    print(
        "measured: isa heads dtype | KV GB/s | read limit | arithmetic limit | share of the lower "
        "| us a call" + (" | vLLM GB/s | ratio" if arguments.peers else "")
    )
    cells = cells_of(arguments)
    record: dict[str, Any] = {
        "kind": "measured",
        "kernel": "paged_attention_decode",
        "capabilities": asdict(capabilities()),
        "cells": [compare(cell, arguments) for cell in cells],
    }
    if arguments.growth:
        record["growth"] = [growth(cell, arguments) for cell in cells]
        if arguments.png:
            draw(record["growth"], arguments.png)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
