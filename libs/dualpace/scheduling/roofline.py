"""Profiles estimated from a few numbers a device, for nodes that nobody has measured.

A dense stage takes the root of the sum of squares of its memory time and its arithmetic time: they
overlap, but not perfectly where they are alike. Measured decode steps of an RTX 4090 between 1 and
512 rows lie on that curve within a few per cent, and up to a third above the larger of the two.
Decode attention is bound by memory. It knows nothing of particular devices; those are in `presets`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dualpace.scheduling.curves import Curve, Grid
from dualpace.scheduling.profile import ModelShape, Origin, Profile, Source, Sources, StageTimes

_ELEMENT_BYTES = 2

_ROW_KNOTS = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 448),
    *(512, 640, 768, 1024, 1536, 2048, 4096, 8192, 16384, 32768),
)
_GRID_ROW_KNOTS = (1, 64, 1024)
_KV_KNOTS = tuple(1 << i for i in range(4, 25))
_PAIR_KNOTS = tuple(1 << i for i in range(4, 36))
_BYTE_KNOTS = tuple(1 << i for i in range(10, 37))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The shape of a dense decoder with gated feed-forward layers, in 16-bit weights."""

    name: str
    num_layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def pre_attention_weights(self) -> int:
        """Parameters of QKV, a layer."""
        return self.hidden * self.head_dim * (self.heads + 2 * self.kv_heads)

    @property
    def post_attention_weights(self) -> int:
        """Parameters of O and the feed-forward layer, a layer."""
        return self.hidden * self.head_dim * self.heads + 3 * self.hidden * self.ffn

    @property
    def head_weights(self) -> int:
        """Parameters of the LM head."""
        return self.hidden * self.vocabulary

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token, all layers."""
        return 2 * self.num_layers * self.kv_heads * self.head_dim * _ELEMENT_BYTES

    @property
    def weight_bytes(self) -> int:
        """Everything, input embedding included."""
        layer = self.pre_attention_weights + self.post_attention_weights
        return (self.num_layers * layer + 2 * self.head_weights) * _ELEMENT_BYTES

    @property
    def pair_flops(self) -> int:
        """Arithmetic of one query-key pair in one layer: scores and values."""
        return 4 * self.heads * self.head_dim

    def shape(self) -> ModelShape:
        """Return what the cost model needs."""
        row = self.head_dim * _ELEMENT_BYTES
        return ModelShape(
            name=self.name,
            fingerprint="",
            num_layers=self.num_layers,
            kv_bytes_per_token=self.kv_bytes_per_token,
            attention_input_bytes=(self.heads + 2 * self.kv_heads) * row,
            attention_output_bytes=self.heads * row,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSpec:
    """A processor, with the rates that real kernels reach on it."""

    name: str
    tflops: float
    """Dense 16-bit arithmetic."""
    gbytes_per_s: float
    """Reading memory."""
    stage_overhead_us: float
    """Fixed cost of one stage of one layer: launches, or a parallel region and its barriers."""
    step_overhead_ms: float

    def dense_ms(self, weights: int, rows: int) -> float:
        """Return the time to multiply `rows` rows with `weights` parameters."""
        memory = weights * _ELEMENT_BYTES / self.gbytes_per_s / 1e6
        arithmetic = 2.0 * weights * rows / self.tflops / 1e9
        overlapped = math.sqrt(memory * memory + arithmetic * arithmetic)
        return overlapped + self.stage_overhead_us / 1e3

    def read_ms(self, size: float) -> float:
        """Return the time to read `size` bytes in one stage."""
        return size / self.gbytes_per_s / 1e6 + self.stage_overhead_us / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec(ComputeSpec):
    """A GPU, or several that share every layer."""

    memory_gbytes: float
    pcie_gbytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec(ComputeSpec):
    """The CPUs and memory that the cpu-engine may use."""


def roofline_profile(
    gpu: GpuSpec, host: HostSpec, model: ModelSpec, *, assist_sync_us: float = 30.0
) -> Profile:
    """Estimate every table of a node's profile."""

    def pairs_ms(pairs: int) -> float:
        return pairs * model.pair_flops / gpu.tflops / 1e9 + gpu.stage_overhead_us / 1e3

    transfer = _curve(_BYTE_KNOTS, lambda size: size / gpu.pcie_gbytes_per_s / 1e6 + 0.01)
    return Profile(
        origin=Origin.ROOFLINE,
        gpu_name=gpu.name,
        host_name=host.name,
        hardware_fingerprint="",
        model=model.shape(),
        gpu=_stage_times(gpu, model),
        gpu_prefill_attention=_curve(_PAIR_KNOTS, pairs_ms),
        host=_stage_times(host, model),
        to_host=transfer,
        to_device=transfer,
        assist_sync_ms=assist_sync_us / 1e3,
        sources=Sources(
            gpu=Source.ESTIMATED,
            host=Source.ESTIMATED,
            transfers=Source.ESTIMATED,
            assist=Source.ESTIMATED,
        ),
    )


def _stage_times(processor: ComputeSpec, model: ModelSpec) -> StageTimes:
    layer_kv = model.kv_bytes_per_token // model.num_layers
    attention = _curve(_KV_KNOTS, lambda tokens: processor.read_ms(tokens * layer_kv))

    def dense(weights: int) -> Curve:
        return _curve(_ROW_KNOTS, lambda rows: processor.dense_ms(weights, rows))

    return StageTimes(
        pre_attention=dense(model.pre_attention_weights),
        post_attention=dense(model.post_attention_weights),
        head=dense(model.head_weights),
        decode_attention=Grid(_GRID_ROW_KNOTS, (attention,) * len(_GRID_ROW_KNOTS)),
        step_overhead_ms=processor.step_overhead_ms,
    )


def _curve(knots: tuple[int, ...], of: Callable[[int], float]) -> Curve:
    return Curve(knots, tuple(of(x) for x in knots))
