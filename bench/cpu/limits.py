"""What this machine can do at most: read bandwidth and multiply-add rates, measured."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from dualpace.checkpoint import ModelConfig
from dualpace.kernels import huge_pages, multiply_adds, narrow_arithmetic, stream_read

READ_BYTES = 1 << 30
STEPS = 2_000_000


@dataclass(frozen=True)
class Limits:
    """Medians of what was measured."""

    read_gb_per_s: float
    """Plain read of memory on huge pages, far larger than the caches."""
    fp32_gflop_per_s: float
    """Independent multiply-adds, two operations each."""
    narrow_gflop_per_s: float | None
    """The same in the arithmetic of bfloat16 models, which is bfloat16 or int16; None: fp32's."""


def measure_limits(num_threads: int, repeats: int = 5) -> Limits:
    """Measure on `num_threads` threads."""
    words = torch.frombuffer(huge_pages(READ_BYTES), dtype=torch.int64)
    words.fill_(1)

    def rate(work: Callable[[], int]) -> float:
        rates = []
        for _ in range(repeats):
            start = perf_counter()
            done = work()
            rates.append(done / (perf_counter() - start) / 1e9)
        return statistics.median(rates)

    def read() -> int:
        stream_read(words, num_threads=num_threads)
        return READ_BYTES

    narrow = narrow_arithmetic()
    return Limits(
        read_gb_per_s=rate(read),
        fp32_gflop_per_s=rate(lambda: multiply_adds(STEPS, num_threads=num_threads)),
        narrow_gflop_per_s=None
        if narrow == "float32"
        else rate(lambda: multiply_adds(STEPS, num_threads=num_threads, arithmetic=narrow)),
    )


def best_limits(several: Sequence[Limits]) -> Limits:
    """Return the highest of each limit; `several` has one or more, of the same instruction set."""
    narrow = [one.narrow_gflop_per_s for one in several if one.narrow_gflop_per_s is not None]
    return Limits(
        read_gb_per_s=max(one.read_gb_per_s for one in several),
        fp32_gflop_per_s=max(one.fp32_gflop_per_s for one in several),
        narrow_gflop_per_s=max(narrow, default=None),
    )


def least_step_ms(
    config: ModelConfig, limits: Limits, *, batch: int, context: int, format_: str
) -> dict[str, float]:
    """Return the least milliseconds of a step's products and of its attention.

    Each is the larger of what its bytes need at the read bandwidth and what its operations need at
    the arithmetic limit of their format: a bound for one stage at a time, caches left aside.
    """
    weight_bytes = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}[format_]
    kv_bytes = 2 if format_ in {"bfloat16", "float16", "int8"} else 4
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
    layer = config.hidden_size * (2 * heads + 2 * kv_heads) * size
    layer += 3 * config.hidden_size * config.intermediate_size
    weights = config.num_layers * layer + config.vocab_size * config.hidden_size
    narrow = limits.narrow_gflop_per_s if format_ in {"bfloat16", "int8"} else None
    peak = (narrow or limits.fp32_gflop_per_s) * 1e6
    bandwidth = limits.read_gb_per_s * 1e6
    keys = batch * config.num_layers * context
    return {
        "products": max(weights * weight_bytes / bandwidth, 2 * batch * weights / peak),
        "attention": max(
            2 * keys * kv_heads * size * kv_bytes / bandwidth,
            4 * keys * heads * size / (limits.fp32_gflop_per_s * 1e6),
        ),
    }


def most_tokens_per_s(
    config: ModelConfig, limits: Limits, *, batch: int, context: int, format_: str
) -> float:
    """Return how fast a step can be where products and attention both run at their limits.

    They follow each other in every layer, so that their times add up; all else is taken as free.
    """
    least = least_step_ms(config, limits, batch=batch, context=context, format_=format_)
    return 1e3 * batch / sum(least.values())
