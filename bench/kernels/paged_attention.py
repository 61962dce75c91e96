"""Measures paged decode attention against its roofline, its growth, and vLLM's kernel.

The roofline of a cell is the lower of two rates of the same run: a plain read of the KV pool, and
attention's multiply-adds, widening included, out of the first cache. `--growth` times calls over a
range of contexts and batches and tells how far each is from a straight line; `--peers` is the
folder of bench/cpu/setup_peers.sh, where vLLM's kernel is then timed in turn with ours, in its AVX2
build against avx2 and in the one for this processor against all else; the best possible ratio to it
is that of a kernel at the roofline. The last line is JSON. Figures are measured, never modelled;
compare only figures of one run.
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

from attention_cell import DTYPES, Attention, Cell, Result, measure

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


def peer_level(cell: Cell) -> str:
    """Return which of vLLM's builds a cell is held against."""
    return "avx2" if cell.isa == "avx2" else "native"


def peer_rates(cells: list[Cell], arguments: argparse.Namespace) -> list[float | str]:
    """Return GB of KV per second of vLLM's kernel for each cell, or why there is none."""
    rates: dict[Cell, float | str] = {}
    for level in sorted({peer_level(cell) for cell in cells}):
        wanted = [cell for cell in cells if peer_level(cell) == level]
        rates |= zip(wanted, level_rates(level, wanted, arguments), strict=True)
    return [rates[cell] for cell in cells]


def level_rates(level: str, cells: list[Cell], arguments: argparse.Namespace) -> list[float | str]:
    """Return the same for cells of one level: a process loads one of vLLM's builds."""
    python = arguments.peers / "vllm" / "bin" / "python"
    if not python.exists():
        missing = arguments.peers / "vllm.missing"
        reason = missing.read_text(encoding="utf-8").strip() if missing.exists() else "not set up"
        return [reason] * len(cells)
    options = {"pool_mib": arguments.pool_mib, "repeats": arguments.repeats}
    wanted = json.dumps([asdict(cell) | options for cell in cells])
    result = subprocess.run(  # noqa: S603
        [str(python), str(PEER), level, wanted], capture_output=True, text=True, check=False
    )
    found: list[float | str] = []
    for line in result.stdout.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in {"RATE", "REFUSED"}:
            found.append(float(rest) if kind == "RATE" else rest)
    last = (result.stderr.strip().splitlines()[-1:] or ["no output"])[0][:160]
    return found + [last] * (len(cells) - len(found))


def measure_all(cells: list[Cell], arguments: argparse.Namespace) -> list[Result]:
    """Measure every cell in turn and print its line."""
    results = []
    for cell in cells:
        result = measure(cell, arguments.pool_mib << 20, arguments.repeats)
        print(row_text(cell, result), flush=True)
        results.append(result)
    return results


def compare(cells: list[Cell], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every cell, before and after the peer where there is one."""
    results = measure_all(cells, arguments)
    rows = [
        asdict(cell) | asdict(result) | {"share": round(result.share, 3)}
        for cell, result in zip(cells, results, strict=True)
    ]
    if not arguments.peers:
        return rows
    peers = peer_rates(cells, arguments)
    again = measure_all(cells, arguments)
    for cell, row, first, peer, second in zip(cells, rows, results, peers, again, strict=True):
        row["kv_gb_per_s_again"] = second.kv_gb_per_s
        row["share_again"] = round(second.share, 3)
        row["vllm_level"] = peer_level(cell)
        row["vllm_kv_gb_per_s"] = peer
        text = f"{row['isa']:>10} {row['heads']:>5} {row['dtype']:>8} against "
        text += f"vLLM's {row['vllm_level']} build's {peer}"
        if isinstance(peer, float):
            mean = statistics.mean([first.kv_gb_per_s, second.kv_gb_per_s])
            limit = statistics.mean([first.limit_gb_per_s, second.limit_gb_per_s])
            row["ratio_to_vllm"] = round(mean / peer, 2)
            row["best_possible_ratio"] = round(limit / peer, 2)
            text += f" GB/s: {row['ratio_to_vllm']} x of at most {row['best_possible_ratio']} x"
        print(text, flush=True)
    return rows


def row_text(cell: Cell, result: Result) -> str:
    """Return one line of the table."""
    return (
        f"{cell.isa:>10} {cell.heads:>5} {cell.dtype:>8} | {result.kv_gb_per_s:6.2f} | "
        f"{result.read_limit_gb_per_s:6.2f} | {result.arithmetic_limit_gb_per_s:6.1f} | "
        f"{result.share:5.2f} | {result.call_us:9.1f}"
    )


def growth(cell: Cell, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time one shape over contexts and over batches; microseconds a call."""
    contexts = times_in_turn({n: replace(cell, context=n) for n in CONTEXTS}, arguments)
    batches = times_in_turn({n: replace(cell, batch=n) for n in BATCHES}, arguments)
    found = {"isa": cell.isa, "heads": cell.heads, "dtype": cell.dtype}
    curves = {
        "context": {"call_us": contexts, "off_line": worst_deviation(contexts)},
        "batch": {"call_us": batches, "off_line": worst_deviation(batches)},
    }
    for axis, curve in curves.items():
        print(f"{cell.isa} {cell.heads} {cell.dtype}: {axis} {curve}", flush=True)
    return found | curves


def times_in_turn(cells: dict[int, Cell], arguments: argparse.Namespace) -> dict[int, float]:
    """Return microseconds a call: the medians of passes of which each cell has one a round.

    Bandwidth moves within seconds: cells that are timed one after the other meet different ones.
    """
    attentions = {n: Attention(cell, arguments.pool_mib << 20) for n, cell in cells.items()}
    seconds: dict[int, list[float]] = {n: [] for n in cells}
    for _ in range(3 * arguments.repeats):
        for n, attention in attentions.items():
            seconds[n].append(attention.call_seconds())
    return {n: 1e6 * statistics.median(found) for n, found in seconds.items()}


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
        "| us a call"
    )
    cells = cells_of(arguments)
    record: dict[str, Any] = {
        "kind": "measured",
        "kernel": "paged_attention_decode",
        "capabilities": asdict(capabilities()),
        "cells": compare(cells, arguments),
    }
    if arguments.growth:
        record["growth"] = [growth(cell, arguments) for cell in cells]
        if arguments.png:
            draw(record["growth"], arguments.png)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
