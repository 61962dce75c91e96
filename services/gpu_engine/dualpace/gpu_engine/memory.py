"""How many KV blocks the device and the arena get, and what length of request follows from that."""

from dataclasses import dataclass

import torch

from dualpace.checkpoint import ModelConfig
from dualpace.core.blocks import blocks_for
from dualpace.core.errors import CapacityError
from dualpace.gpu_engine.settings import GpuEngineSettings
from dualpace.ipc.arena import arena_blocks
from dualpace.ipc.layout import ArenaGeometry
from dualpace.models.arena_pool import KV_DTYPES

_MIN_REQUEST_BYTES = 1 << 10
_MAX_REQUEST_BYTES = 256 << 10
_REQUESTS_SHARE = 64
"""Requests may take one part in so many of the arena, where the bounds above allow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Sizes of both KV pools."""

    device_blocks: int
    arena: ArenaGeometry
    max_model_len: int
    limited_by: str

    def __str__(self) -> str:
        size = self.arena.block_size
        return (
            f"KV: {self.device_blocks} device blocks ({self.device_blocks * size} tokens),"
            f" {self.arena.num_blocks} host blocks ({self.arena.num_blocks * size} tokens);"
            f" requests up to {self.max_model_len} tokens (limited by {self.limited_by})"
        )


def longest_sequence(settings: GpuEngineSettings, config: ModelConfig) -> int:
    """Return the most tokens of a request that model and settings allow, memory aside."""
    return min(config.context_length, settings.max_model_len or config.context_length)


def plan_memory(
    settings: GpuEngineSettings, config: ModelConfig, dtype: torch.dtype, free_device_bytes: int
) -> MemoryPlan:
    """Size both pools. Raises CapacityError if either cannot hold a single block.

    Any request must fit either pool alone: it is prefilled on the device, may be moved to the
    host, and may have to be recomputed on the device.
    """
    size = settings.block_size
    block_bytes = config.kv_bytes_per_token(dtype.itemsize) * size
    budget = settings.device_kv_mib << 20 or free_device_bytes
    device_blocks = budget // block_bytes
    if device_blocks < 1:
        raise CapacityError(
            f"device_kv_mib: {budget >> 20} MiB hold no KV block of {block_bytes} bytes"
        )

    def geometry_of(num_blocks: int) -> ArenaGeometry:
        return ArenaGeometry(
            num_layers=config.num_layers,
            num_blocks=num_blocks,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            block_size=size,
            head_dim=config.head_dim,
            kv_dtype=KV_DTYPES[dtype],
            num_slots=settings.host_slots,
            max_blocks_per_sequence=blocks_for(longest_sequence(settings, config), size),
            request_bytes=_request_bytes(settings),
            assist_rows=settings.assist_rows,
        )

    host_blocks = arena_blocks(settings.arena_mib << 20, geometry_of)
    if host_blocks < 1:
        raise CapacityError(f"arena_mib: {settings.arena_mib} MiB hold no KV block")
    limits = {
        "the model": config.context_length,
        "device_kv_mib": device_blocks * size,
        "arena_mib": host_blocks * size,
    }
    if settings.max_model_len is not None:
        limits["max_model_len"] = settings.max_model_len
    limited_by = min(limits, key=lambda name: limits[name])
    return MemoryPlan(
        device_blocks=device_blocks,
        arena=geometry_of(host_blocks),
        max_model_len=limits[limited_by],
        limited_by=limited_by,
    )


def _request_bytes(settings: GpuEngineSettings) -> int:
    """Return the room for one request, whose grammar may be long, in the sequence table."""
    share = (settings.arena_mib << 20) // _REQUESTS_SHARE // settings.host_slots
    return min(max(share, _MIN_REQUEST_BYTES), _MAX_REQUEST_BYTES) // 64 * 64
