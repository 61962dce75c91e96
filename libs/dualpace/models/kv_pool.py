"""Paged keys and values as one tensor, in the layout that device pools and the host arena share.

Layout: [layers, blocks, 2, kv_heads, block_size, head_dim]; index 0 of the third axis is keys, 1
is values. Which block belongs to whom is not known here.
"""

import torch
from torch import Tensor

from dualpace.checkpoint import ModelConfig


class KvPool:
    """Reads and writes blocks of a tensor that somebody else may own, such as an arena."""

    def __init__(self, tensor: Tensor) -> None:
        if tensor.dim() != 6 or tensor.shape[2] != 2 or not tensor.is_contiguous():
            raise ValueError(
                "KV tensor: contiguous [layers, blocks, 2, kv_heads, block_size, head_dim] is "
                "needed, got "
                f"{list(tensor.shape)} with strides {list(tensor.stride())}"
            )
        self.tensor = tensor
        self.num_layers, self.num_blocks = tensor.shape[:2]
        self.block_size = tensor.shape[4]

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "KvPool":
        """Allocate a zeroed pool for a model."""
        shape = cls.shape(config, num_blocks, block_size)
        return cls(torch.zeros(shape, dtype=dtype, device=device))

    @staticmethod
    def shape(config: ModelConfig, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the shape of a model's pool."""
        return (config.num_layers, num_blocks, 2, config.num_kv_heads, block_size, config.head_dim)

    def layer(self, layer: int) -> Tensor:
        """Return one layer, a contiguous view [blocks, 2, kv_heads, block_size, head_dim]."""
        return self.tensor[layer]

    def write(self, layer: int, block_ids: Tensor, slot_ids: Tensor, k: Tensor, v: Tensor) -> None:
        """Store token t's k[t] and v[t] at (block_ids[t], slot_ids[t]).

        k and v are [T, kv_heads, head_dim], the ids int64 [T]. Values are converted to the pool's
        dtype. No two tokens of a call may share a slot.
        """
        blocks = self.tensor[layer]
        blocks[block_ids, 0, :, slot_ids] = k.to(self.tensor.dtype)
        blocks[block_ids, 1, :, slot_ids] = v.to(self.tensor.dtype)
