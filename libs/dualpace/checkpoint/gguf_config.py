"""GGUF header to ModelConfig. Biases and tied embeddings are told by which tensors there are."""

import math
from collections.abc import Mapping

import numpy as np

from dualpace.checkpoint.config import (
    MAX_CONTEXT,
    MAX_LAYERS,
    Family,
    FrequencyFactors,
    LayerConfig,
    LinearScaling,
    ModelConfig,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)
from dualpace.checkpoint.fields import Fields
from dualpace.checkpoint.gguf_container import GgufContainer
from dualpace.core.errors import CheckpointError

ARCHITECTURES: Mapping[str, Family] = {
    "llama": Family.LLAMA,
    "qwen2": Family.QWEN2,
    "qwen3": Family.QWEN3,
    "phi3": Family.PHI3,
}


def gguf_config(container: GgufContainer) -> ModelConfig:
    """Return what the file describes.

    Raises CheckpointError that names the field, or the unsupported kind.
    """
    header = Fields(container.values, str(container.path))
    name = header.text("general.architecture")
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{container.path}: GGUF architecture {name!r} is not supported; supported are "
            f"{', '.join(ARCHITECTURES)}"
        )
    fields = _Architecture(header, name)
    if fields.integer("expert_count", 0, minimum=0):
        raise CheckpointError(
            f"{container.path}: mixtures of experts are not read from GGUF; use the safetensors "
            "of the model"
        )
    hidden = fields.integer("embedding_length")
    heads, kv_heads, head_dim = _heads(fields, hidden)
    layers = _layers(container, fields, head_dim)
    tensors = container.tensors
    return ModelConfig(
        family=ARCHITECTURES[name],
        vocab_size=_vocab_size(container),
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layers=layers,
        # Stored as float32: its shortest decimal is the number that was meant.
        norm_eps=float(str(np.float32(fields.number("attention.layer_norm_rms_epsilon")))),
        context_length=_context_length(fields, layers[0].rope),
        tied_embeddings="output.weight" not in tensors,
        attention_scale=head_dim**-0.5,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        weights_dtype=_weights_dtype(container),
    )


class _Architecture:
    """Fields under the architecture's prefix.

    A list of equal numbers, one a layer, counts as the number.
    """

    def __init__(self, header: Fields, name: str) -> None:
        self._header = header
        self._prefix = name + "."
        self.name = name
        self.where = header.where

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._header

    def integer(
        self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int | None = None
    ) -> int:
        value = self._header.raw(self._prefix + name)
        header, key = self._header, self._prefix + name
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            header = Fields({key: value[0]}, self.where)
        return header.integer(key, default, minimum=minimum, maximum=maximum)

    def number(self, name: str, default: float | None = None) -> float:
        return self._header.number(self._prefix + name, default)

    def text(self, name: str, default: str) -> str:
        return self._header.text(self._prefix + name, default)

    def fail(self, name: str, wanted: str) -> None:
        self._header.fail(self._prefix + name, self._header.raw(self._prefix + name), wanted)


def _heads(fields: _Architecture, hidden: int) -> tuple[int, int, int]:
    """Return the number of query heads, of KV heads, and the size of both."""
    heads = fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", max(1, hidden // heads))
    if "attention.value_length" in fields and fields.integer("attention.value_length") != head_dim:
        fields.fail("attention.value_length", f"the key length {head_dim}")
    kv_heads = fields.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"{fields.where}: {heads} attention heads cannot share {kv_heads} KV heads evenly"
        )
    return heads, kv_heads, head_dim


def _layers(
    container: GgufContainer, fields: _Architecture, head_dim: int
) -> tuple[LayerConfig, ...]:
    # Phi-3 writes 0 for "no window".
    window = fields.integer("attention.sliding_window", 0, minimum=0) or None
    layer = LayerConfig(rope=_rope(container, fields, head_dim), window=window)
    return (layer,) * fields.integer("block_count", maximum=MAX_LAYERS)


def _context_length(fields: _Architecture, rope: RopeConfig) -> int:
    """Return how many positions may be served: see huggingface_rope on LongRoPE and YaRN."""
    context = fields.integer("context_length", maximum=MAX_CONTEXT)
    original = "rope.scaling.original_context_length"
    match rope.scaling:
        case FrequencyFactors() if fields.name == "phi3":
            return min(context, fields.integer(original, context))
        case YarnScaling(factor=factor):  # some files give the original length
            return max(context, int(factor * fields.integer(original)))
        case _:
            return context


def _vocab_size(container: GgufContainer) -> int:
    embedding = container.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{container.path}: tensor 'token_embd.weight' is missing")
    return embedding.shape[0]


def _weights_dtype(container: GgufContainer) -> str:
    """16-bit files are computed in their own type; quantised ones are exact in float32 only."""
    kinds = {tensor.kind.name for tensor in container.tensors.values() if len(tensor.shape) > 1}
    if kinds == {"BF16"}:
        return "bfloat16"
    return "float16" if kinds == {"F16"} else "float32"


def _rope(container: GgufContainer, fields: _Architecture, head_dim: int) -> RopeConfig:
    rotary_dim = fields.integer("rope.dimension_count", head_dim)
    if rotary_dim % 2 or rotary_dim > head_dim:
        fields.fail("rope.dimension_count", f"an even number of at most head_dim {head_dim}")
    theta = fields.number("rope.freq_base", 10_000.0)
    scaling = _factors(container, fields, rotary_dim) or _scaling(fields)
    return RopeConfig(theta=theta, rotary_dim=rotary_dim, scaling=scaling)


def _factors(
    container: GgufContainer, fields: _Architecture, rotary_dim: int
) -> FrequencyFactors | None:
    """Stored divisors: Llama 3.1's (rope_freqs), or LongRoPE's short ones."""
    for name in ("rope_freqs.weight", "rope_factors_short.weight"):
        tensor = container.tensors.get(name)
        if tensor is None:
            continue
        if tensor.shape != (rotary_dim // 2,) or tensor.kind.name != "F32":
            raise CheckpointError(
                f"{container.path}: tensor {name!r} is {tensor.kind.name} {list(tensor.shape)}; "
                f"F32 [{rotary_dim // 2}] is needed"
            )
        factors = container.raw(tensor).view(np.float32).tolist()
        attention = fields.number("rope.scaling.attn_factor", 1.0)
        return FrequencyFactors(factors=tuple(factors), attention_factor=attention)
    return None


def _scaling(fields: _Architecture) -> RopeScaling | None:
    kind = fields.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        factor = fields.number("rope.scaling.factor", 1.0)
        return None if factor == 1.0 else LinearScaling(factor=factor)
    if kind != "yarn":
        raise CheckpointError(
            f"{fields.where}: rope scaling {kind!r} is not supported; supported are none, linear "
            "and yarn"
        )
    factor = fields.number("rope.scaling.factor")
    return YarnScaling(
        factor=factor,
        original_context=fields.integer("rope.scaling.original_context_length"),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        truncate=True,
        attention_factor=1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0,
    )
