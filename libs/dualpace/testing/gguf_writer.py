"""Writes a Hugging Face checkpoint as GGUF the way that llama.cpp's converter does, for tests.

Llama's query and key rows are interleaved, llama3 rope scaling becomes a tensor of divisors, and
Phi-3's fused tensors keep their fusion. The tokenizer is not written unless given.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import quantize
from numpy.typing import NDArray

from dualpace.checkpoint import (
    Checkpoint,
    Family,
    FrequencyFactors,
    Llama3Scaling,
    ModelConfig,
    YarnScaling,
    float32_values,
)

_ARCHITECTURES = {
    Family.LLAMA: "llama",
    Family.QWEN2: "qwen2",
    Family.QWEN3: "qwen3",
    Family.PHI3: "phi3",
}
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    checkpoint: Checkpoint,
    path: Path,
    *,
    matrices: GGMLQuantizationType = GGMLQuantizationType.F32,
    tokenizer: Mapping[str, Any] | None = None,
) -> None:
    """Write a model's config and tensors. Matrices get the type given, vectors F32.

    `tokenizer` maps keys under tokenizer.ggml to values.
    """
    config = checkpoint.config
    writer = GGUFWriter(path, _ARCHITECTURES[config.family])
    _write_config(writer, config)
    for key, value in (tokenizer or {}).items():
        _write_value(writer, f"tokenizer.ggml.{key}", value)
    for name in checkpoint.tensor_infos():
        values = float32_values(checkpoint.read(name))
        if config.family is Family.LLAMA:
            values = _interleaved(config, name, values)
        kind = matrices if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(_gguf_name(name), quantize(values, kind), raw_dtype=kind)
    for name, divisors in _rope_divisors(config).items():
        writer.add_tensor(name, divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_config(writer: GGUFWriter, config: ModelConfig) -> None:
    rope, window = config.layers[0].rope, config.layers[0].window
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(rope.theta)
    writer.add_rope_dimension_count(rope.rotary_dim)
    if config.family is Family.PHI3:
        writer.add_sliding_window(window or 0)
    elif config.head_dim != config.hidden_size // config.num_heads:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    match rope.scaling:
        case YarnScaling(factor=factor, original_context=original):
            writer.add_rope_scaling_type(RopeScalingType.YARN)
            writer.add_rope_scaling_factor(factor)
            writer.add_rope_scaling_orig_ctx_len(original)
        case FrequencyFactors(attention_factor=attention):
            writer.add_rope_scaling_attn_factors(attention)
        case _:
            pass


def _write_value(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_PARTS[part]}.{kind}"


def _interleaved(
    config: ModelConfig, name: str, values: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Put the two halves of each head's rows into turns, as ggml's llama rope wants them."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return values
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _rope_divisors(config: ModelConfig) -> dict[str, NDArray[np.float32]]:
    rope = config.layers[0].rope
    match rope.scaling:
        case FrequencyFactors(factors=factors):
            return {"rope_factors_short.weight": np.array(factors, np.float32)}
        case Llama3Scaling() as scaling:
            exponents = np.arange(0, rope.rotary_dim, 2) / rope.rotary_dim
            wavelengths = 2 * math.pi * rope.theta**exponents
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            smooth = (scaling.original_context / wavelengths - low) / (high - low)
            divisors = 1 / ((1 - smooth) / scaling.factor + smooth)
            divisors[wavelengths < scaling.original_context / high] = 1
            divisors[wavelengths > scaling.original_context / low] = scaling.factor
            return {"rope_freqs.weight": divisors.astype(np.float32)}
        case _:
            return {}
