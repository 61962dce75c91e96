"""The attention stage as both engines see it: one interface, several implementations.

`kv_layer` is one layer of a KvPool, [blocks, 2, kv_heads, block_size, head_dim]. Position p of a
sequence lies in block `table[p // block_size]`, slot `p % block_size`. Query head h reads KV head
h // (heads / kv_heads). Key j is visible from query position i iff j <= i and, with a window, j >
i - window.
"""

from typing import Protocol

from torch import Tensor


class PagedAttention(Protocol):
    """Attention over paged keys and values.

    The new tokens' own k and v have been written before the call.
    """

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
        """Attend with one query for each of B sequences.

        q [B, heads, head_dim]; block_tables [R, M] int32; rows [B] int32: the table row of each
        sequence; lengths [B] int32: its KV positions, the current token included. Entries of a row
        past the sequence's blocks are not read as block ids. Returns [B, heads, head_dim] in q's
        dtype; zeros where the length is 0.
        """
        ...

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
        """Attend with T consecutive queries of one sequence, at positions start ..

        Start + T - 1, causally.

        q [T, heads, head_dim]; block_table [M] int32. Returns [T, heads, head_dim] in q's dtype.
        """
        ...
