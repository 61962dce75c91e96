"""Paged attention in plain torch: any device, any dtype, no repeated keys, softmax in fp32.

It gathers the blocks that are read into one dense copy, so it is the portable and the reference
path, not the fast one. Slots past a sequence's length may hold anything, NaN included: nothing of
them reaches a result.
"""

import torch
from torch import Tensor
from torch.nn import functional

_GATHER_LIMIT = 1 << 24
"""Most elements of gathered keys and values in one step of decode."""
_SCORE_LIMIT = 1 << 24
"""Most (query head of a group, key) pairs of a KV head in one step of prefill."""


class TorchPagedAttention:
    """`PagedAttention` on torch operations alone."""

    def decode(
        self,
        q: Tensor,
        kv_layer: Tensor,
        block_tables: Tensor,
        rows: Tensor,
        lengths: Tensor,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """See PagedAttention.decode. `lengths` is read on the host, which waits for CUDA."""
        block_size = kv_layer.shape[3]
        first = torch.zeros_like(lengths) if window is None else (lengths - window).clamp_min(0)
        first_block = first // block_size
        num_blocks = (lengths + block_size - 1) // block_size - first_block
        span = int(num_blocks.max()) if len(q) else 0
        if span <= 0:
            return torch.zeros_like(q)
        outputs = []
        tile = max(1, _GATHER_LIMIT // (span * kv_layer[0].numel()))
        for begin in range(0, len(q), tile):
            at = slice(begin, begin + tile)
            block_index = first_block[at, None] + torch.arange(span, device=q.device)
            used = block_index * block_size < lengths[at, None]
            # A row's entries past the sequence may be any number: block 0 is read there, and
            # masked.
            column = block_index.clamp_max(block_tables.shape[1] - 1)
            blocks = block_tables[rows[at, None], column].where(used, 0)
            slots = block_index[:, :, None] * block_size + torch.arange(block_size, device=q.device)
            positions = slots.flatten(1)
            visible = (positions >= first[at, None]) & (positions < lengths[at, None])
            outputs.append(_decode_tile(q[at], kv_layer[blocks], visible, scale))
        return torch.cat(outputs)

    def prefill(
        self,
        q: Tensor,
        kv_layer: Tensor,
        block_table: Tensor,
        start: int,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """See PagedAttention.prefill."""
        num_queries, num_heads, _ = q.shape
        block_size = kv_layer.shape[3]
        num_keys = start + num_queries
        first = 0 if window is None else max(0, start - window + 1) // block_size * block_size
        blocks = block_table[first // block_size : -(-num_keys // block_size)]
        # [n, 2, kv_heads, block_size, head_dim] to [2, kv_heads, keys, head_dim]
        kv = (
            kv_layer[blocks]
            .permute(1, 2, 0, 3, 4)
            .flatten(2, 3)[:, :, : num_keys - first]
            .to(q.dtype)
        )
        tile = max(1, _SCORE_LIMIT // ((num_keys - first) * (num_heads // kv_layer.shape[2])))
        output = torch.empty_like(q)
        for begin in range(0, num_queries, tile):
            end = min(begin + tile, num_queries)
            low = 0 if window is None else max(0, start + begin - window + 1 - first)
            keys = kv[:, :, low : start + end - first]
            output[begin:end] = _prefill_tile(
                q[begin:end], keys, start + begin - first - low, scale, window
            )
        return output


def _decode_tile(q: Tensor, blocks: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Attend with q [B, heads, head_dim] over blocks [B, n, 2, kv_heads, block_size, head_dim].

    visible [B, n * block_size] tells which slots count. Sequences without any get zeros.
    """
    num_rows, num_heads, head_dim = q.shape
    kv_heads = blocks.shape[3]
    kv = blocks.permute(2, 0, 3, 1, 4, 5).reshape(2, num_rows, kv_heads, -1, head_dim).float()
    grouped = q.reshape(num_rows, kv_heads, num_heads // kv_heads, head_dim).float()
    scores = torch.matmul(grouped, kv[0].transpose(-1, -2)) * scale
    weights = scores.masked_fill_(~visible[:, None, None], float("-inf")).softmax(-1)
    weights = weights.masked_fill_(~visible.any(-1)[:, None, None, None], 0.0)
    # Zero times NaN is NaN: values of slots that do not count are cleared.
    values = kv[1].masked_fill_(~visible[:, None, :, None], 0.0)
    return torch.matmul(weights, values).reshape(q.shape).to(q.dtype)


def _prefill_tile(q: Tensor, kv: Tensor, offset: int, scale: float, window: int | None) -> Tensor:
    """Attend with q [T, heads, head_dim] over kv [2, kv_heads, N, head_dim].

    Query i stands at key offset + i.
    """
    num_queries, num_heads, head_dim = q.shape
    kv_heads, num_keys = kv.shape[1:3]
    group = num_heads // kv_heads
    query_at = torch.arange(offset, offset + num_queries, device=q.device)[:, None]
    key_at = torch.arange(num_keys, device=q.device)
    visible = key_at <= query_at
    if window is not None:
        visible &= key_at > query_at - window
    # The heads of a group become further queries of their KV head: nothing is repeated but the
    # mask.
    folded = q.reshape(num_queries, kv_heads, group, head_dim).transpose(0, 1).flatten(1, 2)
    mask = visible[:, None].expand(-1, group, -1).reshape(1, 1, num_queries * group, num_keys)
    attended = functional.scaled_dot_product_attention(
        folded[None], kv[0][None], kv[1][None], attn_mask=mask, scale=scale
    )
    return attended.view(kv_heads, num_queries, group, head_dim).transpose(0, 1).reshape(q.shape)
