"""Paged attention on the host: decode in the native kernel library, prefill in torch.

Importing this module needs the kernel library; the engine that imports it decides what to do, and
logs it, where that is not built.
"""

import torch
from torch import Tensor

from dualpace.kernels import paged_attention_decode
from dualpace.models.torch_attention import TorchPagedAttention


class NativePagedAttention(TorchPagedAttention):
    """`PagedAttention` for CPU tensors whose KV is float32, float16 or bfloat16."""

    def __init__(self, num_threads: int) -> None:
        assert num_threads > 0
        self._num_threads = num_threads

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
        """See PagedAttention.decode."""
        query = q.to(torch.float32).contiguous()
        out = torch.empty_like(query)
        paged_attention_decode(
            query,
            kv_layer,
            block_tables,
            rows,
            lengths,
            out,
            scale=scale,
            window=0 if window is None else window,
            rounding=q.dtype is torch.bfloat16,
            num_threads=self._num_threads,
        )
        return out.to(q.dtype)
