"""Measures packed linears: share of the multiply-add limit in large batches, of reading in small.

Weights of one shape are packed so many times that they do not fit into the caches, and each call
takes another copy. Between the calls' repeats the limits are measured: nothing but multiply-adds,
in the arithmetic that the format is computed with, and a plain read of memory. The least time of a
call is the larger of what its bytes and its operations need. The last line is JSON. Figures are
measured, never modelled; compare only figures of one run.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from attention_cell import huge_page_bytes

from dualpace.kernels import (
    WEIGHT_FORMATS,
    PackedLinear,
    capabilities,
    multiply_adds,
    narrow_arithmetic,
    stream_read,
)

SHAPES = {
    "135m-qkv": (960, 576),
    "135m-output": (576, 576),
    "135m-gate-up": (3072, 576),
    "135m-down": (576, 1536),
    "135m-head": (49152, 576),
    "1b-qkv": (3072, 2048),
    "1b-output": (2048, 2048),
    "1b-gate-up": (16384, 2048),
    "1b-down": (2048, 8192),
    "1b-head": (32000, 2048),
}
"""Outputs and inputs, of SmolLM2-135M and of a Llama of one billion parameters."""
PEAK_STEPS = 1_000_000
READ_BYTES = 256 << 20


@dataclass(frozen=True)
class Row:
    """Medians over the repeats."""

    isa: str
    format: str
    shape: str
    batch: int
    call_us: float
    gflop_per_s: float
    gb_per_s: float
    """Of packed weights."""
    share_of_arithmetic: float
    share_of_reading: float

    @property
    def share(self) -> float:
        """Of the limit that binds."""
        return max(self.share_of_arithmetic, self.share_of_reading)


def packed_copies(shape: str, format_: str, most_bytes: int, threads: int) -> list[PackedLinear]:
    """Return at least one packed copy, and no more than take `most_bytes`."""
    outputs, inputs = SHAPES[shape]
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))
    first = PackedLinear(weight, format=format_, num_threads=threads)
    count = max(1, most_bytes // first.num_bytes)
    rest = [PackedLinear(weight, format=format_, num_threads=threads) for _ in range(count - 1)]
    return [first, *rest]


def timed(work: Callable[..., object], *arguments: object, **options: object) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    work(*arguments, **options)
    return time.perf_counter() - start


def arithmetic_of(format_: str, isa: str) -> str:
    """Return how products of a bfloat16 model's activations with such weights are computed."""
    narrow = narrow_arithmetic(isa)
    if format_ == "int16":
        return "int16"
    return narrow if format_ in {"int8", narrow} else "float32"


class Bench:
    """The memory that is read, and what was asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._words = huge_page_bytes(READ_BYTES).view(torch.int64)
        self._words.fill_(1)
        self._arguments = arguments

    def measure(self, isa: str, format_: str, shape: str) -> list[Row]:
        """Time one shape in every batch."""
        threads = self._arguments.threads
        copies = packed_copies(shape, format_, self._arguments.pool_mib << 20, threads)
        return [self._time(isa, copies, shape, batch) for batch in self._arguments.batches]

    def _time(self, isa: str, copies: list[PackedLinear], shape: str, batch: int) -> Row:
        threads = self._arguments.threads
        outputs, inputs = SHAPES[shape]
        format_ = copies[0].format
        arithmetic = arithmetic_of(format_, isa)
        x, out = torch.randn(batch, inputs), torch.empty(batch, outputs)
        rounding = arithmetic != "float32"
        options = {"num_threads": threads, "isa": isa}
        calls, reads, rates = [], [], []
        for repeat in range(self._arguments.repeats + 1):
            seconds = [
                timed(copy.multiply, x, out, rounding=rounding, **options) for copy in copies
            ]
            read = timed(stream_read, self._words, num_threads=threads)
            start = time.perf_counter()
            operations = multiply_adds(PEAK_STEPS, arithmetic=arithmetic, **options)
            rate = operations / (time.perf_counter() - start)
            if repeat:  # the first starts the threads
                calls.append(statistics.median(seconds))
                reads.append(READ_BYTES / read)
                rates.append(rate)
        call = statistics.median(calls)
        flops = 2 * batch * outputs * inputs / call
        read_rate = copies[0].num_bytes / call
        return Row(
            isa=isa,
            format=format_,
            shape=shape,
            batch=batch,
            call_us=call * 1e6,
            gflop_per_s=flops / 1e9,
            gb_per_s=read_rate / 1e9,
            share_of_arithmetic=flops / statistics.median(rates),
            share_of_reading=read_rate / statistics.median(reads),
        )


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", nargs="+", default=[capabilities().isa])
    parser.add_argument("--formats", nargs="+", default=list(WEIGHT_FORMATS))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 128, 256])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pool-mib", type=int, default=256, help="weights that are read in turn")
    return parser.parse_args()


def main() -> None:
    """Print a line for each shape and batch, and one of JSON."""
    arguments = parse_arguments()
    print(capabilities())
    print("measured: isa format shape batch | GFLOP/s, share | GB/s, share | us a call")
    bench = Bench(arguments)
    rows = []
    for isa, format_, shape in itertools.product(
        arguments.isa, arguments.formats, arguments.shapes
    ):
        for row in bench.measure(isa, format_, shape):
            rows.append(row)
            print(
                f"{row.isa:>10} {row.format:>8} {row.shape:>12} {row.batch:>3} | "
                f"{row.gflop_per_s:6.1f} {row.share_of_arithmetic:5.2f} | "
                f"{row.gb_per_s:6.2f} {row.share_of_reading:5.2f} | {row.call_us:9.1f}",
                flush=True,
            )
    record = {"kind": "measured", "kernel": "packed linear", "rows": [*map(asdict, rows)]}
    print(json.dumps(record))


if __name__ == "__main__":
    main()
