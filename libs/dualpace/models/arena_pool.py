"""The arena's KV region as a KvPool: the same bytes, no copy."""

import math

import torch

from dualpace.ipc.arena import Arena
from dualpace.ipc.layout import KvDtype
from dualpace.models.kv_pool import KvPool

TORCH_DTYPES = {
    KvDtype.FLOAT32: torch.float32,
    KvDtype.FLOAT16: torch.float16,
    KvDtype.BFLOAT16: torch.bfloat16,
}
KV_DTYPES = {dtype: kind for kind, dtype in TORCH_DTYPES.items()}


def arena_pool(arena: Arena) -> KvPool:
    """Return a pool over the arena's KV. It keeps the mapping alive."""
    geometry = arena.geometry
    flat = torch.frombuffer(
        arena.memory,
        dtype=TORCH_DTYPES[geometry.kv_dtype],
        count=math.prod(geometry.kv_shape),
        offset=arena.layout.kv.offset,
    )
    return KvPool(flat.view(geometry.kv_shape))
