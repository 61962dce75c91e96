"""Compares tiles (amxbf16) with vectors (avx512bf16) by rows of a product and heads of a KV head.

For a processor that has both, to see whether LEAST_TILE_ROWS and LEAST_TILE_HEADS fit it. Both
levels are timed in turn, on weights and KV far larger than the caches; the last line is JSON.
Figures are measured, never modelled; compare only figures of one run.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict

import torch

from dualpace.kernels import (
    LEAST_TILE_HEADS,
    LEAST_TILE_ROWS,
    PackedLinear,
    capabilities,
    multiply_adds,
    paged_attention_decode,
)

VECTORS, TILES = "avx512bf16", "amxbf16"
ROWS = (1, 2, 4, 5, 8, 16, 32, 64, 128, 256)
GROUPS = (1, 2, 3, 4, 6, 8, 16)


def medians(call: Callable[[str], None], repeats: int) -> dict[str, float]:
    """Return the median seconds of one call on each level, timed in turn."""
    seconds: dict[str, list[float]] = {VECTORS: [], TILES: []}
    for isa in seconds:
        call(isa)
    for _ in range(repeats):
        for isa, taken in seconds.items():
            start = time.perf_counter()
            call(isa)
            taken.append(time.perf_counter() - start)
    return {isa: statistics.median(taken) for isa, taken in seconds.items()}


def product(weights: list[PackedLinear], rows: int, threads: int) -> Callable[[str], None]:
    """Return the product of `rows` rows with each of the weights."""
    x = torch.randn(rows, weights[0].inputs)
    out = torch.empty(rows, weights[0].outputs)

    def call(isa: str) -> None:
        for weight in weights:
            weight.multiply(x, out, rounding=True, num_threads=threads, isa=isa)

    return call


def attention(
    group: int, threads: int, batch: int = 32, context: int = 1024
) -> Callable[[str], None]:
    """Return decode attention of 8 KV heads of 128 over eight layers of KV in blocks of 32."""
    blocks = batch * context // 32
    layers = torch.randn(8, blocks, 2, 8, 32, 128).bfloat16()
    tables = torch.randperm(blocks).to(torch.int32).view(batch, -1)
    rows = torch.arange(batch, dtype=torch.int32)
    lengths = torch.full((batch,), context, dtype=torch.int32)
    query = torch.randn(batch, 8 * group, 128)
    out = torch.empty_like(query)

    def call(isa: str) -> None:
        for kv in layers:
            paged_attention_decode(
                query,
                kv,
                tables,
                rows,
                lengths,
                out,
                scale=128**-0.5,
                rounding=True,
                num_threads=threads,
                isa=isa,
            )

    return call


def peak(isa: str, threads: int) -> float:
    """Return bfloat16 operations a second."""
    multiply_adds(1000, arithmetic="bfloat16", num_threads=threads, isa=isa)
    start = time.perf_counter()
    operations = multiply_adds(100_000, arithmetic="bfloat16", num_threads=threads, isa=isa)
    return operations / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--outputs", type=int, default=8192)
    parser.add_argument("--inputs", type=int, default=4096)
    arguments = parser.parse_args()
    if TILES not in capabilities().available:
        parser.error(f"this machine does not run {TILES}: {capabilities()}")
    threads, repeats = arguments.threads, arguments.repeats
    cells = []

    def report(kind: str, size: int, seconds: dict[str, float]) -> None:
        ratio = seconds[VECTORS] / seconds[TILES]
        text = ", ".join(f"{isa} {taken * 1e6:.0f} us" for isa, taken in seconds.items())
        print(
            f"measured: {kind} {size:>3}: {text}; tiles are {ratio:.2f} times as fast", flush=True
        )
        cells.append({"kind": kind, "size": size, **seconds})

    print(f"{capabilities()}\ntiles from {LEAST_TILE_ROWS} rows and {LEAST_TILE_HEADS} heads on")
    peaks = {isa: peak(isa, threads) for isa in (VECTORS, TILES)}
    print("measured:", ", ".join(f"{isa} {rate / 1e9:.0f} GFLOP/s" for isa, rate in peaks.items()))
    weight = torch.randn(arguments.outputs, arguments.inputs)
    weights = [PackedLinear(weight, format="bfloat16", num_threads=threads) for _ in range(8)]
    for rows in ROWS:
        report("rows", rows, medians(product(weights, rows, threads), repeats))
    for group in GROUPS:
        report("heads", group, medians(attention(group, threads), repeats))
    record = {"kind": "measured", "capabilities": asdict(capabilities()), "peaks": peaks}
    print(json.dumps(record | {"cells": cells}))


if __name__ == "__main__":
    main()
