"""Loads what serves on each side, over KV memory of its own."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dualpace.checkpoint import Checkpoint, ModelConfig
from dualpace.core.blocks import blocks_for
from dualpace.core.errors import CapacityError, SettingsError
from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.host_attention import host_attention
from dualpace.models.host_linear import host_linear
from dualpace.models.host_step import host_step
from dualpace.models.kv_pool import KvPool
from dualpace.models.linear import Linear, LinearFactory, torch_linear
from dualpace.models.loader import load_decoder
from dualpace.models.progress import log_progress
from dualpace.models.torch_attention import TorchPagedAttention
from dualpace.profiler.bench import Side
from dualpace.profiler.hardware import available_bytes
from dualpace.profiler.knots import Knots
from dualpace.profiler.settings import ProfilerSettings

log = logging.getLogger(__name__)

_MOST_KV_BYTES = 4 << 30
_LINEARS = ("qkv", "output", "gate_up", "down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Both sides, loaded."""

    host: Side
    device: Side | None
    """None: there is none to measure."""
    knots: Knots
    """Of sizes that fit."""


def load_node(
    settings: ProfilerSettings, checkpoint: Checkpoint, knots: Knots, check: Callable[[], None]
) -> Node:
    """Load weights and KV memory. Raises SettingsError, CheckpointError or CapacityError."""
    dtype = serving_dtype(settings, checkpoint.config)
    loading = _Loading(settings, checkpoint, dtype, check)
    host, host_knots = loading.side(torch.device("cpu"), settings.host_threads, knots, host=True)
    if settings.emulated is not None:
        return Node(host=host, device=None, knots=host_knots)
    if settings.on_cuda and not torch.cuda.is_available():
        raise SettingsError(f"device: {settings.device} wanted, but torch finds no CUDA device")
    threads = 1 if settings.on_cuda else settings.stand_in_threads
    device, knots = loading.side(torch.device(settings.device), threads, host_knots)
    return Node(host=host, device=device, knots=knots)


def serving_dtype(settings: ProfilerSettings, config: ModelConfig) -> torch.dtype:
    """Return what the engines compute and keep KV in."""
    name = settings.dtype
    if name == "auto":
        name = config.weights_dtype if settings.on_cuda else "float32"
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@dataclass(frozen=True, slots=True)
class _Loading:
    """What both sides have in common."""

    settings: ProfilerSettings
    checkpoint: Checkpoint
    dtype: torch.dtype
    check: Callable[[], None]

    def side(
        self, device: torch.device, threads: int, knots: Knots, *, host: bool = False
    ) -> tuple[Side, Knots]:
        """Build a side, the cpu-engine's or the gpu-engine's. Returns the knots that fit, too."""
        torch.set_num_threads(threads)
        # A native iteration needs KV of all layers; otherwise two do, one that is cold.
        layers = self.checkpoint.config.num_layers if host else 2
        pool, knots = _pool(self, device, knots, layers)
        decoder, linears = self._weights(
            device, host_linear(threads) if host else torch_linear, knots.kv_tokens[-1]
        )
        attention = _attention(device, threads)
        side = Side(
            decoder=decoder,
            attention=attention,
            pool=pool,
            threads=threads,
            linears=linears,
            synchronize=_synchronize(device),
        )
        if not host:
            return side, knots
        tables = np.zeros((max(knots.rows), pool.num_blocks), np.int32)
        # The head is timed as those need it who want logits, and attention by itself, as it is
        # where dense stages are lent.
        step = host_step(
            decoder,
            pool,
            tables,
            attention,
            num_threads=threads,
            screen_head=False,
            rows_in_turns=0,
        )
        if step.seconds() is None:
            return side, knots
        return replace(side, step=step, step_tables=tables), knots

    def _weights(
        self, device: torch.device, factory: LinearFactory, longest: int
    ) -> tuple[Decoder, dict[str, list[Linear]]]:
        """Load the model, and keep its matrix products by kind."""
        made: dict[tuple[int, ...], list[Linear]] = {}

        def recorded(weight: Tensor, bias: Tensor | None) -> Linear:
            shape = tuple(weight.shape)
            linear = factory(weight, bias)
            made.setdefault(shape, []).append(linear)
            return linear

        decoder = load_decoder(
            self.checkpoint,
            dtype=self.dtype,
            device=device,
            linear=recorded,
            progress=log_progress(log, f"loading weights on {device}", self.check),
            # One row may be measured over more KV than the model was made for.
            max_positions=max(longest, self.checkpoint.config.context_length),
        )
        shapes = linear_shapes(self.checkpoint.config)
        return decoder, {kind: made[shape] for kind, shape in shapes.items() if shape in made}


def linear_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return each matrix product's (outputs, inputs). A mixture's experts are not among them."""
    heads = config.num_heads * config.head_dim
    kv_heads = 2 * config.num_kv_heads * config.head_dim
    shapes = {
        "qkv": (heads + kv_heads, config.hidden_size),
        "output": (config.hidden_size, heads),
        "gate_up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
    }
    dense = any(not layer.sparse for layer in config.layers)
    return {kind: shapes[kind] for kind in (_LINEARS if dense else _LINEARS[:2])}


def _pool(
    loading: _Loading, device: torch.device, knots: Knots, least_layers: int
) -> tuple[KvPool, Knots]:
    """Allocate and fill KV memory for the largest knot, over as many layers as fit."""
    settings, config, dtype = loading.settings, loading.checkpoint.config, loading.dtype
    least_layers = min(least_layers, config.num_layers)
    size = settings.block_size
    block_bytes = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize * size
    budget = (settings.memory_mib << 20) or min(_MOST_KV_BYTES, _free_bytes(device) // 8)
    spare = max(*knots.grid_rows, *knots.rows)  # last blocks may be partly filled
    most_blocks = budget // block_bytes // least_layers
    fitting = knots.cut((most_blocks - spare) * size)
    blocks = blocks_for(fitting.kv_tokens[-1], size) + spare
    if blocks > most_blocks:
        raise CapacityError(
            f"memory_mib: {budget >> 20} MiB hold too little KV to measure; at least"
            f" {(blocks * block_bytes * least_layers >> 20) + 1} are needed"
        )
    if fitting.kv_tokens != knots.kv_tokens:
        log.warning(
            "%d MiB of KV memory: attention is measured up to %d tokens, not %d",
            budget >> 20,
            fitting.kv_tokens[-1],
            knots.kv_tokens[-1],
        )
    layers = min(config.num_layers, max(1, budget // block_bytes // blocks))
    shape = (layers, blocks, 2, config.num_kv_heads, size, config.head_dim)
    try:
        tensor = torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:  # torch's word for no memory
        raise CapacityError(f"memory_mib: no memory for KV to measure: {error}") from None
    tensor.copy_(torch.randn(shape[3:], device=device).to(dtype))
    return KvPool(tensor), fitting


def _free_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return available_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    return free


def _attention(device: torch.device, threads: int) -> PagedAttention:
    return host_attention(threads) if device.type == "cpu" else TorchPagedAttention()


def _synchronize(device: torch.device) -> Callable[[], None]:
    if device.type == "cpu":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)
