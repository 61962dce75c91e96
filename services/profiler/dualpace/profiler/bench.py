"""One side of the node, stage by stage: the very objects that serve, on inputs of any size.

Weights and KV are read cold, as in serving, where everything else passes through the caches
between two uses: successive calls go from layer to layer, and through the whole KV memory. KV is
filled, since pages that were never written are one page. Attention includes the write of the new
tokens' keys and values, which stays on the host when dense stages are lent to the GPU.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dualpace.core.blocks import blocks_for
from dualpace.core.request import SamplingParams
from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.host_step import HostStep
from dualpace.models.kv_pool import KvPool
from dualpace.models.linear import Linear
from dualpace.profiler.knots import lengths
from dualpace.sampling.sampler import sample

_SAMPLE_S = 0.005
"""A sample covers as many layers as take about so long. Short ones are less often disturbed."""
_OPENINGS = 10
_SAMPLING = SamplingParams()

Sample = Callable[[], float]
"""Returns milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What serves on one side."""

    decoder: Decoder
    attention: PagedAttention
    pool: KvPool
    """Its layers stand for those of the model, in turn."""
    threads: int
    linears: Mapping[str, Sequence[Linear]]
    """Of each kind, one a layer."""
    synchronize: Callable[[], None] = lambda: None
    """Waits for everything enqueued."""
    step: HostStep | None = None
    """Runs whole iterations natively, and tells the time of each stage; None: there are stages
    alone. Its pool has all layers."""
    step_tables: npt.NDArray[np.int32] | None = None
    """The block tables that `step` reads."""


class StageBench:
    """Makes samples of each stage."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._decoder = side.decoder
        self._device = side.decoder.device
        self._generator = torch.Generator(device=self._device).manual_seed(1)
        self._turn = 0
        self._offset = 0
        windows = {self._decoder.window(layer) for layer in range(self._decoder.num_layers)}
        self._alike = len(windows) == 1

    def pre_attention(self, rows: int) -> Sample:
        """One layer's norm, QKV and RoPE."""
        hidden, positions = self._hidden(rows), self._positions(rows)
        return self._per_layer(
            lambda layer: self._decoder.pre_attention(layer, hidden, positions), alike=True
        )

    def post_attention(self, rows: int) -> Sample:
        """One layer's O, feed-forward and residuals."""
        config = self._decoder.config
        attended = self._random(rows, config.num_heads, config.head_dim)
        hidden = self._hidden(rows)
        return self._per_layer(
            lambda layer: self._decoder.post_attention(layer, attended, hidden), alike=True
        )

    def head(self, rows: int) -> Sample:
        """Final norm, logits and sampling: once an iteration."""
        hidden = self._hidden(rows)
        return self._timed(lambda: self._sample(self._decoder.head(hidden)))

    def decode_attention(self, rows: int, kv_tokens: int) -> Sample:
        """One layer's KV write and attention of so many rows."""
        batch = self._batches(rows, kv_tokens)
        config = self._decoder.config
        q = self._random(rows, config.num_heads, config.head_dim)
        k, v = (self._random(rows, config.num_kv_heads, config.head_dim) for _ in "kv")
        return self._per_layer(
            lambda layer: self._attend(layer, q, k, v, batch()), alike=self._alike
        )

    def prefill_attention(self, tokens: int, start: int) -> Sample:
        """One layer's attention of a prompt's chunk."""
        config = self._decoder.config
        q = self._random(tokens, config.num_heads, config.head_dim)
        table = self._batches(1, start + tokens)().tables[0]

        def run(layer: int) -> None:
            self._side.attention.prefill(
                q,
                self._pool_layer(layer),
                table,
                start,
                scale=self._decoder.attention_scale(layer),
                window=self._decoder.window(layer),
            )

        return self._per_layer(run, alike=self._alike)

    def linear(self, kind: str, rows: int) -> Sample:
        """One matrix product, a layer's."""
        maps = self._side.linears[kind]
        config = self._decoder.config
        width = {
            "output": config.num_heads * config.head_dim,
            "down": config.intermediate_size,
        }.get(kind, config.hidden_size)
        x = self._random(rows, width)
        return self._per_layer(lambda layer: maps[layer % len(maps)](x), alike=True)

    def opening(self, rows: int, kv_tokens: int) -> Sample:
        """What an iteration does before its first layer: once, whatever the stages take."""
        begin = self._opening(rows, kv_tokens)
        return self._timed(lambda: [begin() for _ in range(_OPENINGS)], per=_OPENINGS)

    def step(self, rows: int, kv_tokens: int) -> Sample:
        """One whole iteration of decodes."""
        decoder = self._decoder
        begin = self._opening(rows, kv_tokens)

        def run() -> None:
            batch, positions, hidden = begin()
            for layer in range(decoder.num_layers):
                q, k, v = decoder.pre_attention(layer, hidden, positions)
                attended = self._attend(layer, q, k, v, batch)
                hidden = decoder.post_attention(layer, attended, hidden)
            self._sample(decoder.head(hidden))

        return self._timed(run)

    def _opening(self, rows: int, kv_tokens: int) -> Callable[[], tuple["_Batch", Tensor, Tensor]]:
        """Return what makes a batch, its positions and its first hidden states."""
        decoder = self._decoder
        batches = self._batches(rows, kv_tokens)
        numbers = [7 * row % decoder.config.vocab_size for row in range(rows)]

        def begin() -> tuple[_Batch, Tensor, Tensor]:
            batch = batches()
            token_ids = torch.tensor(numbers, dtype=torch.int64, device=self._device)
            positions = (batch.lengths.long() - 1).clamp_max(decoder.max_positions - 1)
            return batch, positions, decoder.embed(token_ids)

        return begin

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: "_Batch") -> Tensor:
        pool, decoder = self._side.pool, self._decoder
        pool.write(layer % pool.num_layers, batch.blocks, batch.slots, k, v)
        return self._side.attention.decode(
            q,
            self._pool_layer(layer),
            batch.tables,
            batch.rows,
            batch.lengths,
            scale=decoder.attention_scale(layer),
            window=decoder.window(layer),
        )

    def _pool_layer(self, layer: int) -> Tensor:
        return self._side.pool.layer(layer % self._side.pool.num_layers)

    def _sample(self, logits: Tensor) -> None:
        rows = len(logits)
        sample(logits, [_SAMPLING] * rows, list(range(rows)))

    def _batches(self, rows: int, kv_tokens: int) -> Callable[[], "_Batch"]:
        """Return a source of batches that lie further and further on in the KV memory."""
        pool = self._side.pool
        used = sum(blocks_for(n, pool.block_size) for n in lengths(rows, kv_tokens))
        variants = max(1, min(8, pool.num_blocks // used))
        batches = [
            _Batch.of(rows, kv_tokens, pool.block_size, first * used, self._device)
            for first in range(variants)
        ]

        def next_batch() -> _Batch:
            self._offset += 1
            return batches[self._offset % variants]

        return next_batch

    def _per_layer(self, run: Callable[[int], object], *, alike: bool) -> Sample:
        """Time successive layers, as many as make a sample; not alike: all of them at once."""
        layers = self._decoder.num_layers
        first_ms = self._timed(lambda: run(self._next_layer()))
        first_ms()
        estimate_s = max(first_ms(), 1e-3) / 1e3
        count = min(layers, max(1, round(_SAMPLE_S / estimate_s))) if alike else layers

        def several() -> None:
            for _ in range(count):
                run(self._next_layer())

        return self._timed(several, per=count)

    def _next_layer(self) -> int:
        self._turn += 1
        return self._turn % self._decoder.num_layers

    def _timed(self, run: Callable[[], object], *, per: int = 1) -> Sample:
        side = self._side

        @torch.inference_mode()
        def once() -> float:
            if torch.get_num_threads() != side.threads:
                torch.set_num_threads(side.threads)
            side.synchronize()
            begin = time.perf_counter()
            run()
            side.synchronize()
            return (time.perf_counter() - begin) * 1e3 / per

        return once

    def _hidden(self, rows: int) -> Tensor:
        return self._random(rows, self._decoder.config.hidden_size)

    def _positions(self, rows: int) -> Tensor:
        most = self._decoder.max_positions
        return torch.arange(rows, dtype=torch.int64, device=self._device) * 37 % most

    def _random(self, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self._generator, device=self._device)
        return values.to(self._decoder.dtype)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Where the KV of a decode batch lies."""

    tables: Tensor
    rows: Tensor
    lengths: Tensor
    blocks: Tensor
    slots: Tensor

    @classmethod
    def of(
        cls, rows: int, kv_tokens: int, block_size: int, first: int, device: torch.device
    ) -> "_Batch":
        """Return a batch whose blocks follow each other from `first` on."""
        counts = lengths(rows, kv_tokens)
        widths = [blocks_for(n, block_size) for n in counts]
        tables = torch.zeros((rows, max(widths)), dtype=torch.int32)
        last = []
        for row, width in enumerate(widths):
            tables[row, :width] = torch.arange(first, first + width, dtype=torch.int32)
            first += width
            last.append(first - 1)
        return cls(
            tables=tables.to(device),
            rows=torch.arange(rows, dtype=torch.int32, device=device),
            lengths=torch.tensor(counts, dtype=torch.int32, device=device),
            blocks=torch.tensor(last, dtype=torch.int64, device=device),
            slots=torch.tensor(
                [(n - 1) % block_size for n in counts], dtype=torch.int64, device=device
            ),
        )
