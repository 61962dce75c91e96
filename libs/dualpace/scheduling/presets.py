"""Devices and models by name, with rates that were seen on them, not those of data sheets.

Sources: decode and prefill steps of vLLM and swiftLLM measured on an RTX 4090 (the cilinmengye/NEO
reproduction), memory copies and GEMMs of the other GPUs, LIA and KTransformers for AMX, a hybrid
port of vLLM for untuned hosts. Tests hold every preset to those points.
"""

from typing import TypeVar

from dualpace.core.errors import SettingsError
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.roofline import GpuSpec, HostSpec, ModelSpec, roofline_profile

T = TypeVar("T")

_MODELS = (
    ModelSpec(
        name="llama-3.1-8b",
        num_layers=32,
        hidden=4096,
        ffn=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocabulary=128256,
    ),
    ModelSpec(
        name="llama-3.1-70b",
        num_layers=80,
        hidden=8192,
        ffn=28672,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocabulary=128256,
    ),
    ModelSpec(
        name="qwen2.5-14b",
        num_layers=48,
        hidden=5120,
        ffn=13824,
        heads=40,
        kv_heads=8,
        head_dim=128,
        vocabulary=152064,
    ),
    ModelSpec(
        name="llama-2-7b",
        num_layers=32,
        hidden=4096,
        ffn=11008,
        heads=32,
        kv_heads=32,
        head_dim=128,
        vocabulary=32000,
    ),
)

_GPUS = (
    GpuSpec(
        name="rtx-4090",
        tflops=150,
        gbytes_per_s=920,
        stage_overhead_us=5,
        step_overhead_ms=0.3,
        memory_gbytes=25.76,
        pcie_gbytes_per_s=22,
    ),
    GpuSpec(
        name="a10g",
        tflops=60,
        gbytes_per_s=500,
        stage_overhead_us=5,
        step_overhead_ms=0.3,
        memory_gbytes=24.1,
        pcie_gbytes_per_s=22,
    ),
    GpuSpec(
        name="t4",
        tflops=42,
        gbytes_per_s=260,
        stage_overhead_us=5,
        step_overhead_ms=0.3,
        memory_gbytes=15.8,
        pcie_gbytes_per_s=12,
    ),
    GpuSpec(
        name="h200",
        tflops=788,
        gbytes_per_s=4300,
        stage_overhead_us=4,
        step_overhead_ms=0.3,
        memory_gbytes=150.7,
        pcie_gbytes_per_s=52,
    ),
    # Two cards share every layer; two reductions a layer go over NVLink.
    GpuSpec(
        name="h200x2",
        tflops=1500,
        gbytes_per_s=8400,
        stage_overhead_us=14,
        step_overhead_ms=0.3,
        memory_gbytes=301.4,
        pcie_gbytes_per_s=104,
    ),
)

_HOSTS = (
    # Twelve cores of a Xeon Silver 4510, from untuned kernels to ones close to its memory.
    HostSpec(
        name="xeon-4510-65",
        tflops=3,
        gbytes_per_s=65,
        stage_overhead_us=15,
        step_overhead_ms=2.0,
    ),
    HostSpec(
        name="xeon-4510-120",
        tflops=6.5,
        gbytes_per_s=120,
        stage_overhead_us=15,
        step_overhead_ms=2.0,
    ),
    HostSpec(
        name="xeon-4510-180",
        tflops=10,
        gbytes_per_s=180,
        stage_overhead_us=15,
        step_overhead_ms=2.0,
    ),
    # Two ranks of twelve cores, a memory node each; two reductions a layer in shared memory.
    HostSpec(
        name="xeon-4510-120-tp2",
        tflops=13,
        gbytes_per_s=240,
        stage_overhead_us=30,
        step_overhead_ms=2.0,
    ),
    # One socket of the 8480 class.
    HostSpec(
        name="xeon-8480",
        tflops=20.5,
        gbytes_per_s=245,
        stage_overhead_us=15,
        step_overhead_ms=2.0,
    ),
)

MODELS = {spec.name: spec for spec in _MODELS}
GPUS = {spec.name: spec for spec in _GPUS}
HOSTS = {spec.name: spec for spec in _HOSTS}

_GPU_MEMORY_FRACTION = 0.92
_GPU_WORKSPACE_GBYTES = 1.9
"""Activations, graphs and the runtime itself, beside weights and KV."""


def preset_profile(gpu: str, host: str, model: str) -> Profile:
    """Return the estimated profile of a named node. Raises SettingsError."""
    return roofline_profile(
        named_gpu(gpu), named("host", HOSTS, host), named("model", MODELS, model)
    )


def named_gpu(name: str) -> GpuSpec:
    """Return a GPU preset. Raises SettingsError that lists the names."""
    return named("gpu", GPUS, name)


def named(kind: str, presets: dict[str, T], name: str) -> T:
    """Return a preset by name. Raises SettingsError that lists the names."""
    if name not in presets:
        raise SettingsError(f"{kind}: {name!r} is not one of {', '.join(presets)}")
    return presets[name]


def default_device_blocks(gpu: GpuSpec, model: ModelSpec, block_size: int) -> int:
    """Return the KV blocks that fit beside the weights. Raises SettingsError if there are none."""
    free = gpu.memory_gbytes * _GPU_MEMORY_FRACTION - _GPU_WORKSPACE_GBYTES
    blocks = int((free * 1e9 - model.weight_bytes) // (model.kv_bytes_per_token * block_size))
    if blocks < 1:
        raise SettingsError(f"model: {model.name} does not fit a {gpu.name}")
    return blocks
