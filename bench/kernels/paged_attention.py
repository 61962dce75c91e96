"""Measures paged decode attention: GB/s of KV read, beside the read bandwidth of the same run.

Every call reads another layer of a KV pool far larger than the caches. Passes over the pool
alternate with a plain read of it, so that both meet the same neighbours on the machine. The last
line is JSON. Figures are measured, never modelled; compare only figures of one run.
"""

import argparse
import itertools
import json
import mmap
import os
import statistics
import time
from dataclasses import asdict, dataclass

import torch

from dualpace.kernels import capabilities, paged_attention_decode, stream_read

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Cell:
    """One shape. `heads` is "query/kv"."""

    isa: str
    heads: str
    dtype: str
    head_dim: int
    block_size: int
    block_order: str
    batch: int
    context: int
    threads: int

    @property
    def blocks_a_sequence(self) -> int:
        """Blocks that hold `context` positions."""
        return -(-self.context // self.block_size)

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """[num_blocks, 2, kv_heads, block_size, head_dim]."""
        kv_heads = int(self.heads.split("/")[1])
        num_blocks = self.batch * self.blocks_a_sequence
        return (num_blocks, 2, kv_heads, self.block_size, self.head_dim)

    def block_tables(self) -> torch.Tensor:
        """[batch, blocks_a_sequence] int32, each block in one place."""
        num_blocks = self.layer_shape[0]
        if self.block_order == "contiguous":
            blocks = torch.arange(num_blocks)
        else:
            blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
        return blocks.to(torch.int32).view(self.batch, -1)


@dataclass(frozen=True)
class Result:
    """Medians over the repeats of one cell; what is read is counted in bytes of KV."""

    kv_gb_per_s: float
    limit_gb_per_s: float
    call_us: float


def huge_page_bytes(size: int) -> torch.Tensor:
    """Return `size` bytes of anonymous memory, on huge pages where the kernel gives them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def make_pool(cell: Cell, pool_bytes: int) -> torch.Tensor:
    """Return [layers, *cell.layer_shape], at least one layer; all layers hold the same values."""
    dtype = DTYPES[cell.dtype]
    layer = torch.randn(cell.layer_shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    layers = max(1, pool_bytes // layer.nbytes)
    pool = huge_page_bytes(layers * layer.nbytes).view(dtype).view(layers, *cell.layer_shape)
    pool[:] = layer
    return pool


def measure(cell: Cell, pool_bytes: int, repeats: int) -> Result:
    """Time one cell: each repeat is one pass over all layers, then one plain read of the pool."""
    pool = make_pool(cell, pool_bytes)
    words = pool.view(-1).view(torch.int64)
    query = torch.randn(cell.batch, int(cell.heads.split("/")[0]), cell.head_dim)
    tables = cell.block_tables()
    rows = torch.arange(cell.batch, dtype=torch.int32)
    lengths = torch.full((cell.batch,), cell.context, dtype=torch.int32)
    out = torch.empty_like(query)
    options = {"scale": cell.head_dim**-0.5, "num_threads": cell.threads}

    def attend() -> None:
        for kv in pool:
            paged_attention_decode(query, kv, tables, rows, lengths, out, isa=cell.isa, **options)

    passes, limits = [], []
    attend()  # starts the threads and touches every page
    for _ in range(repeats):
        start = time.perf_counter()
        attend()
        middle = time.perf_counter()
        stream_read(words, num_threads=cell.threads)
        passes.append(middle - start)
        limits.append(time.perf_counter() - middle)
    seconds = statistics.median(passes)
    used = cell.context / (cell.blocks_a_sequence * cell.block_size)
    return Result(
        kv_gb_per_s=pool.nbytes * used / seconds / 1e9,
        limit_gb_per_s=pool.nbytes / statistics.median(limits) / 1e9,
        call_us=seconds / pool.shape[0] * 1e6,
    )


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", nargs="+", default=["9/3", "32/8"], help="query/kv heads")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=DTYPES)
    parser.add_argument("--isa", nargs="+", default=[capabilities().isa])
    parser.add_argument("--block-order", default="shuffled", choices=["shuffled", "contiguous"])
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--pool-mib", type=int, default=1024, help="KV that is read in turn")
    return parser.parse_args()


def main() -> None:
    """Measure every cell; print a table and one line of JSON."""
    arguments = parse_arguments()
    print(capabilities())
    print("measured: isa heads dtype | KV GB/s | limit GB/s | share of limit | us a call")
    results = []
    for isa, heads, dtype in itertools.product(arguments.isa, arguments.heads, arguments.dtypes):
        cell = Cell(
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
        result = measure(cell, arguments.pool_mib << 20, arguments.repeats)
        share = result.kv_gb_per_s / result.limit_gb_per_s
        print(
            f"{isa:>7} {heads:>5} {dtype:>8} | {result.kv_gb_per_s:6.2f} | "
            f"{result.limit_gb_per_s:6.2f} | {share:5.2f} | {result.call_us:9.1f}"
        )
        results.append(asdict(cell) | asdict(result))
    record = {"kind": "measured", "kernel": "paged_attention_decode"}
    print(json.dumps(record | {"capabilities": asdict(capabilities()), "cells": results}))


if __name__ == "__main__":
    main()
