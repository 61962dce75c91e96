"""What this machine can do at most: read bandwidth and multiply-add rates, measured."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
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
    bf16_gflop_per_s: float | None
    """The same on bfloat16 pairs; None: the instruction set has none."""
    int16_gflop_per_s: float | None
    """The same in int16 arithmetic; None: that is not used."""

    @property
    def narrow_gflop_per_s(self) -> float:
        """Of the arithmetic of bfloat16 models."""
        return self.bf16_gflop_per_s or self.screen_gflop_per_s

    @property
    def screen_gflop_per_s(self) -> float:
        """Of the arithmetic in which a float32 model's head is searched for greedy tokens."""
        return self.int16_gflop_per_s or self.fp32_gflop_per_s


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

    def arithmetic(name: str) -> float:
        return rate(lambda: multiply_adds(STEPS, num_threads=num_threads, arithmetic=name))

    narrow = narrow_arithmetic()
    return Limits(
        read_gb_per_s=rate(read),
        fp32_gflop_per_s=arithmetic("float32"),
        bf16_gflop_per_s=arithmetic("bfloat16") if narrow == "bfloat16" else None,
        int16_gflop_per_s=None if narrow == "float32" else arithmetic("int16"),
    )


def combined(several: Sequence[Limits], of: Callable[[list[float]], float]) -> Limits:
    """Return what `of` makes of each limit; `several` has one or more, of one instruction set."""
    values: dict[str, float | None] = {}
    for name in (field.name for field in fields(Limits)):
        known = [value for one in several if (value := getattr(one, name)) is not None]
        values[name] = of(known) if known else None
    return Limits(**values)  # type: ignore[arg-type]


def stage_ms(
    config: ModelConfig, limits: Limits, *, batch: int, context: int, format_: str
) -> dict[str, tuple[float, float]]:
    """Return the least milliseconds that a step's products, and its attention, read and compute.

    What their bytes need at the read bandwidth, each read once, and what their operations need at
    the arithmetic limit of their format. Of float32 and float16 models the head is looked through
    in int16, as greedy tokens need it.
    """
    weight_bytes = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}[format_]
    kv_bytes = 2 if format_ in {"bfloat16", "float16", "int8"} else 4
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
    layer = config.hidden_size * (2 * heads + 2 * kv_heads) * size
    layer += 3 * config.hidden_size * config.intermediate_size
    layers = config.num_layers * layer
    head = config.vocab_size * config.hidden_size
    narrow = format_ in {"bfloat16", "int8"}
    peak = (limits.narrow_gflop_per_s if narrow else limits.fp32_gflop_per_s) * 1e6
    head_peak = (limits.narrow_gflop_per_s if narrow else limits.screen_gflop_per_s) * 1e6
    screened = limits.int16_gflop_per_s is not None and not narrow
    head_bytes = min(weight_bytes, 2) if screened else weight_bytes
    bandwidth = limits.read_gb_per_s * 1e6
    keys = batch * config.num_layers * context
    return {
        "products": (
            (layers * weight_bytes + head * head_bytes) / bandwidth,
            2 * batch * (layers / peak + head / head_peak),
        ),
        "attention": (
            2 * keys * kv_heads * size * kv_bytes / bandwidth,
            4 * keys * heads * size / (limits.fp32_gflop_per_s * 1e6),
        ),
    }


def least_step_ms(
    config: ModelConfig, limits: Limits, *, batch: int, context: int, format_: str
) -> dict[str, float]:
    """Return the least milliseconds of a step's products and of its attention, each for itself."""
    stages = stage_ms(config, limits, batch=batch, context=context, format_=format_)
    return {name: max(times) for name, times in stages.items()}


def most_tokens_per_s(
    config: ModelConfig, limits: Limits, *, batch: int, context: int, format_: str
) -> float:
    """Return how fast a step can be that reads all it needs while it computes all it needs.

    A step may compute with some rows what others' memory is read for, so that only the sums of
    reading and of computing bound it; all else is taken as free.
    """
    stages = stage_ms(config, limits, batch=batch, context=context, format_=format_)
    reading = sum(read for read, _ in stages.values())
    computing = sum(computed for _, computed in stages.values())
    return 1e3 * batch / max(reading, computing)
