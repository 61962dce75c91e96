"""One forward pass over tokens of many sequences, over a paged KV pool.

Decode rows come first and are attended together; prefill chunks follow, each attended on its own.
Both engines run this: the host's batches simply hold no prefill chunks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.kv_pool import KvPool


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive tokens of one sequence, at rows `first` .. `first + count - 1` of the batch."""

    first: int
    count: int
    start: int
    """Position of the first of them."""
    block_table: Tensor
    """[M] int32: blocks of the sequence, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """T tokens: D decode rows, then the prefill chunks. All tensors are on the model's device."""

    token_ids: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64"""
    block_ids: Tensor
    """[T] int64: the block that takes each token's KV."""
    slot_ids: Tensor
    """[T] int64: the slot within it."""
    block_tables: Tensor
    """[R, M] int32"""
    decode_rows: Tensor
    """[D] int32: the table row of each decode row's sequence."""
    decode_lengths: Tensor
    """[D] int32: KV positions of each decode row's sequence, the current token included."""
    prefills: Sequence[PrefillChunk]
    logit_rows: Tensor
    """[S] int64: the rows whose next token is sampled."""


def forward(
    decoder: Decoder,
    pool: KvPool,
    attention: PagedAttention,
    batch: TokenBatch,
    *,
    at_boundary: Callable[[], None] | None = None,
    after_write: Callable[[int], None] | None = None,
    with_hidden: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Compute KV and return logits [S, vocab] float32.

    `at_boundary()` is called between the dense stages, before each layer and before the head.
    `with_hidden(hidden)` gets the states [T, hidden_size] of all tokens, ready for the head.
    `after_write(layer)` is called when the KV of a layer's tokens has been written (on CUDA:
    enqueued), before attention reads it: the moment from which it may be copied elsewhere.
    """
    hidden = decoder.embed(batch.token_ids)
    for layer in range(decoder.num_layers):
        if at_boundary is not None:
            at_boundary()
        q, k, v = decoder.pre_attention(layer, hidden, batch.positions)
        pool.write(layer, batch.block_ids, batch.slot_ids, k, v)
        if after_write is not None:
            after_write(layer)
        attended = attend(decoder, pool, attention, layer, q, batch)
        hidden = decoder.post_attention(layer, attended, hidden)
    if at_boundary is not None:
        at_boundary()
    if with_hidden is not None:
        with_hidden(hidden)
    return decoder.head(hidden[batch.logit_rows])


def attend(  # noqa: PLR0917 - one for each part of the stage
    decoder: Decoder,
    pool: KvPool,
    attention: PagedAttention,
    layer: int,
    q: Tensor,
    batch: TokenBatch,
) -> Tensor:
    """Attend with every row of the batch; returns what q is shaped like."""
    stage = _Attend(
        attention, pool.layer(layer), decoder.attention_scale(layer), decoder.window(layer)
    )
    return stage(q, batch)


@dataclass(frozen=True, slots=True)
class _Attend:
    """The attention stage of one layer."""

    attention: PagedAttention
    kv_layer: Tensor
    scale: float
    window: int | None

    def __call__(self, q: Tensor, batch: TokenBatch) -> Tensor:
        """Attend with every row of the batch; returns what q is shaped like."""
        num_decodes = batch.decode_rows.shape[0]
        parts = [self._decode(q[:num_decodes], batch)] if num_decodes else []
        parts.extend(self._prefill(q, chunk) for chunk in batch.prefills)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, q: Tensor, batch: TokenBatch) -> Tensor:
        return self.attention.decode(
            q,
            self.kv_layer,
            batch.block_tables,
            batch.decode_rows,
            batch.decode_lengths,
            scale=self.scale,
            window=self.window,
        )

    def _prefill(self, q: Tensor, chunk: PrefillChunk) -> Tensor:
        return self.attention.prefill(
            q[chunk.first : chunk.first + chunk.count],
            self.kv_layer,
            chunk.block_table,
            chunk.start,
            scale=self.scale,
            window=self.window,
        )
