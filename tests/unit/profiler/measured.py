"""Sweeps whose results follow from known costs, so that what is built from them can be told."""

from dataclasses import replace

from dualpace.checkpoint.config import Family, LayerConfig, ModelConfig, RopeConfig
from dualpace.profiler.document import Measured, model_shape
from dualpace.profiler.knots import QUICK_KNOTS, Knots
from dualpace.profiler.timing import Summary
from dualpace.scheduling.profile import Source

CONFIG = ModelConfig(
    family=Family.LLAMA,
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_heads=32,
    num_kv_heads=4,
    head_dim=64,
    layers=(LayerConfig(rope=RopeConfig(theta=1e4, rotary_dim=64)),) * 22,
    norm_eps=1e-5,
    context_length=4096,
    tied_embeddings=False,
    attention_scale=0.125,
)
OVERHEAD_MS = {"host": 2.0, "gpu": 0.5}
_SPEED = {"host": 1.0, "gpu": 20.0}


def pre_ms(side: str, rows: int) -> float:
    return (0.5 + 0.02 * rows) / _SPEED[side]


def post_ms(side: str, rows: int) -> float:
    return (1.5 + 0.05 * rows) / _SPEED[side]


def head_ms(side: str, rows: int) -> float:
    return (5.0 + 0.2 * rows) / _SPEED[side]


def attention_ms(side: str, rows: int, tokens: int) -> float:
    return (0.01 + 1e-3 * rows + 2e-5 * tokens) / _SPEED[side]


def step_ms(side: str, rows: int, tokens: int) -> float:
    layer = pre_ms(side, rows) + post_ms(side, rows) + attention_ms(side, rows, tokens)
    return OVERHEAD_MS[side] + CONFIG.num_layers * layer + head_ms(side, rows)


def sweep(knots: Knots = QUICK_KNOTS, *, sides: tuple[str, ...] = ("host", "gpu")) -> Measured:
    """Return what a sweep of these knots would measure."""
    ms: dict[str, float] = {}
    for side in sides:
        for rows in knots.rows:
            ms[f"{side}/pre_attention/{rows}"] = pre_ms(side, rows)
            ms[f"{side}/post_attention/{rows}"] = post_ms(side, rows)
            ms[f"{side}/head/{rows}"] = head_ms(side, rows)
        for rows in knots.grid_rows:
            for tokens in knots.kv_tokens:
                ms[f"{side}/attention/{rows}x{tokens}"] = attention_ms(side, rows, tokens)
        ms[f"{side}/opening"] = OVERHEAD_MS[side]
        for rows, tokens in knots.steps:
            ms[f"{side}/step/{rows}x{tokens}"] = step_ms(side, rows, tokens)
    for n, start in knots.prefills:
        ms[f"gpu/prefill/{n}+{start}"] = 1e-7 * n * (start + n)
    for size in knots.sizes:
        ms[f"to_host/{size}"] = 0.01 + size / 2e7
        ms[f"to_device/{size}"] = 0.01 + size / 2.2e7
    return Measured(
        results={key: Summary(value, 0.01, 9, stable=True) for key, value in ms.items()},
        knots=knots,
        model=model_shape(CONFIG, "m", "ab" * 32, 2),
        config=CONFIG,
        device=Source.MEASURED,
        preset=None,
        gpu_name="g",
        host_name="h",
        hardware_fingerprint="f" * 64,
    )


def stand_in(measured: Measured) -> Measured:
    return replace(measured, device=Source.STAND_IN)


def emulated(measured: Measured) -> Measured:
    return replace(measured, device=Source.ESTIMATED, preset="rtx-4090", gpu_name="rtx-4090")
