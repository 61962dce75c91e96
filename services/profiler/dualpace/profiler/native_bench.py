"""The host's side where iterations run natively, in one call: stage times are the call's own.

Attention includes no write of keys and values here: the native step counts that to
`pre_attention`. Single matrix products, and what only stages have, are measured as elsewhere.
"""

import time
from collections.abc import Callable

import numpy as np

from dualpace.core.blocks import blocks_for
from dualpace.models.host_step import DecodeBatch, Logits, StepSeconds
from dualpace.profiler.bench import Sample, Side, StageBench
from dualpace.profiler.knots import lengths

Pick = Callable[[StepSeconds], float]


class NativeBench(StageBench):
    """Makes samples of each stage from whole iterations."""

    def __init__(self, side: Side) -> None:
        super().__init__(side)
        assert side.step is not None and side.step_tables is not None
        assert side.pool.num_layers == side.decoder.num_layers
        self._step = side.step
        self._step_tables = side.step_tables

    def pre_attention(self, rows: int) -> Sample:
        """See StageBench; the write of keys and values included."""
        return self._per_layer_of(rows, rows, lambda s: s.pre_attention)

    def post_attention(self, rows: int) -> Sample:
        """See StageBench."""
        return self._per_layer_of(rows, rows, lambda s: s.post_attention)

    def head(self, rows: int) -> Sample:
        """See StageBench."""
        sampling_ms = 0.0

        def sampled(logits: Logits) -> None:
            nonlocal sampling_ms
            begin = time.perf_counter()
            self._sample(logits.values)
            sampling_ms = (time.perf_counter() - begin) * 1e3

        stage = self._stage(rows, rows, lambda s: s.head, sampled)
        return lambda: stage() + sampling_ms

    def decode_attention(self, rows: int, kv_tokens: int) -> Sample:
        """See StageBench; without the write."""
        return self._per_layer_of(rows, kv_tokens, lambda s: s.attention)

    def opening(self, rows: int, kv_tokens: int) -> Sample:
        """See StageBench."""
        return self._stage(rows, kv_tokens, lambda s: s.embed)

    def step(self, rows: int, kv_tokens: int) -> Sample:
        """See StageBench."""
        run = self._native(rows, kv_tokens)
        return self._timed(lambda: self._sample(run().values))

    def _per_layer_of(self, rows: int, kv_tokens: int, pick: Pick) -> Sample:
        stage, layers = self._stage(rows, kv_tokens, pick), self._decoder.num_layers
        return lambda: stage() / layers

    def _stage(
        self, rows: int, kv_tokens: int, pick: Pick, after: Callable[[Logits], None] | None = None
    ) -> Sample:
        run = self._native(rows, kv_tokens)

        def once() -> float:
            before = self._step.seconds()
            logits = run()
            seconds = self._step.seconds()
            assert before is not None and seconds is not None
            if after is not None:
                after(logits)
            return (pick(seconds) - pick(before)) * 1e3

        return once

    def _native(self, rows: int, kv_tokens: int) -> Callable[[], Logits]:
        """Return what runs an iteration over blocks that lie further and further on."""
        pool, tables = self._side.pool, self._step_tables
        counts = lengths(rows, kv_tokens)
        widths = [blocks_for(n, pool.block_size) for n in counts]
        used = sum(widths)
        variants = max(1, min(8, pool.num_blocks // used))
        batch = DecodeBatch(
            token_ids=np.arange(rows, dtype=np.int64) * 7 % self._decoder.config.vocab_size,
            rows=np.arange(rows, dtype=np.int32),
            lengths=np.array(counts, dtype=np.int32),
        )

        def run() -> Logits:
            self._offset += 1
            first = self._offset % variants * used
            for row, width in enumerate(widths):
                tables[row, :width] = np.arange(first, first + width, dtype=np.int32)
                first += width
            return self._step(batch)

        return run
