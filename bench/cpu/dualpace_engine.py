"""Times the cpu-engine's decode step, sampling included, over KV that is filled with noise.

KV lies on huge pages, as the arena does where the system allows it.
"""

import math
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from cpu.cells import Cell, peer_arguments, report

from dualpace.checkpoint import open_checkpoint
from dualpace.kernels import huge_pages
from dualpace.models import KvPool, load_decoder
from dualpace.models.host_attention import host_attention
from dualpace.models.host_linear import host_linear
from dualpace.models.host_step import DecodeBatch, host_step

BLOCK_SIZE = 16
FORMATS = {
    "float32": (torch.float32, "float32"),
    "bfloat16": (torch.bfloat16, "auto"),
    "float16": (torch.float16, "auto"),
    "int8": (torch.bfloat16, "int8"),
}
"""Model and KV dtype, and the format that weights are packed in. (OpenVINO's KV beside int8 weights
is int8 as well, llama.cpp's float16.)"""


class Engine:
    """One model, packed once."""

    def __init__(self, model: Path, format_: str, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        self._num_threads = num_threads
        self._dtype, weights = FORMATS[format_]
        self._decoder = load_decoder(
            open_checkpoint(model),
            dtype=self._dtype,
            device=torch.device("cpu"),
            linear=host_linear(num_threads, weights=weights),
        )

    def measure(
        self, cell: Cell, tokens: int, repeats: int
    ) -> tuple[list[float], dict[str, float] | None]:
        """Return tokens per second of each repeat, and milliseconds a step by stage."""
        decoder = self._decoder
        width = -(-(cell.context + tokens + 2) // BLOCK_SIZE)
        shape = KvPool.shape(decoder.config, cell.batch * width, BLOCK_SIZE)
        memory = huge_pages(math.prod(shape) * self._dtype.itemsize)
        pool = KvPool(torch.frombuffer(memory, dtype=self._dtype).view(shape))
        pool.tensor[:] = torch.randn(pool.tensor.shape[-2:]).to(self._dtype)
        order = np.random.default_rng(0).permutation(cell.batch * width)
        tables = order.astype(np.int32).reshape(cell.batch, width)
        step = host_step(
            decoder,
            pool,
            tables,
            host_attention(self._num_threads),
            num_threads=self._num_threads,
            rows_in_turns=None,
        )
        rows = np.arange(cell.batch, dtype=np.int32)
        nobody = np.zeros(cell.batch, np.bool_)

        def decode(count: int) -> None:
            ids = np.full(cell.batch, 11, dtype=np.int64)
            for length in range(cell.context + 1, cell.context + 1 + count):
                lengths = np.full(cell.batch, length, dtype=np.int32)
                batch = DecodeBatch(token_ids=ids, rows=rows, lengths=lengths, wanted=nobody)
                logits = step(batch)
                best = logits.values.argmax(-1).numpy() if logits.best is None else logits.best
                ids = best.copy()

        decode(2)
        before = step.seconds()
        speeds = []
        for _ in range(repeats):
            start = perf_counter()
            decode(tokens)
            speeds.append(cell.batch * tokens / (perf_counter() - start))
        after = step.seconds()
        if before is None or after is None:
            return speeds, None
        steps = repeats * tokens
        names = ("embed", "pre_attention", "attention", "post_attention", "head")
        stages = {n: 1e3 * (getattr(after, n) - getattr(before, n)) / steps for n in names}
        return speeds, stages


if __name__ == "__main__":
    arguments = peer_arguments(tuple(FORMATS))
    engine = Engine(Path(arguments.model), arguments.format, arguments.threads)
    report(
        "dualpace",
        arguments,
        lambda cell: engine.measure(cell, arguments.tokens, arguments.repeats),
    )
