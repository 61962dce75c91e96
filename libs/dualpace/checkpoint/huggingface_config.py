"""config.json to ModelConfig, one small function for what is special in each family.

Defaults of absent fields are those of the family's configuration class in transformers.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dualpace.checkpoint.config import (
    MAX_CONTEXT,
    MAX_LAYERS,
    Activation,
    Family,
    LayerConfig,
    ModelConfig,
    MoeConfig,
)
from dualpace.checkpoint.fields import Fields
from dualpace.checkpoint.huggingface_rope import parse_rope, rope_context
from dualpace.core.errors import CheckpointError

ARCHITECTURES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family.LLAMA,
    "MistralForCausalLM": Family.MISTRAL,
    "Qwen2ForCausalLM": Family.QWEN2,
    "Qwen3ForCausalLM": Family.QWEN3,
    "Phi3ForCausalLM": Family.PHI3,
    "MixtralForCausalLM": Family.MIXTRAL,
    "Qwen3MoeForCausalLM": Family.QWEN3_MOE,
    "Gemma3ForCausalLM": Family.GEMMA3,
}

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
_DTYPES = ("float32", "bfloat16", "float16")


def parse_config(values: Mapping[str, Any], where: str) -> ModelConfig:
    """Return what config.json describes; `where` names it in errors.

    Raises CheckpointError for unsupported architectures and quantised weights, and for any field
    of a wrong type.
    """
    fields = Fields(values, where)
    family = _family(fields)
    if "quantization_config" in fields:
        method = (fields.sub("quantization_config") or fields).text("quant_method", "unknown")
        raise CheckpointError(
            f"{where}: weights are quantised (quantization_config, method {method!r}), which is "
            "not supported; use the model's unquantised weights or a GGUF file"
        )
    return _FAMILIES[family](_common(fields, family), fields)


def _family(fields: Fields) -> Family:
    named = fields.items("architectures", str) or []
    for name in named:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    model_type = fields.text("model_type", "")
    if not named and model_type in set(Family):
        return Family(model_type)
    what = ", ".join(named) or f"model_type {model_type!r}"
    raise CheckpointError(
        f"{fields.where}: architecture {what} is not supported; supported are "
        f"{', '.join(ARCHITECTURES)}"
    )


def _common(fields: Fields, family: Family) -> ModelConfig:
    """Read what all families share, with one rope, no windows and no experts."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    default_kv_heads = _DEFAULT_KV_HEADS.get(family, heads)
    kv_heads = fields.nullable_integer("num_key_value_heads", default_kv_heads) or heads
    head_dim = fields.integer("head_dim", _DEFAULT_HEAD_DIM.get(family, max(1, hidden // heads)))
    if heads % kv_heads:
        raise CheckpointError(
            f"{fields.where}: {heads} attention heads cannot share {kv_heads} KV heads evenly"
        )
    if head_dim % 2:
        raise CheckpointError(f"{fields.where}: head_dim {head_dim} is odd; rope needs an even one")
    context = fields.integer("max_position_embeddings", maximum=MAX_CONTEXT)
    theta = 1_000_000.0 if family in (Family.MIXTRAL, Family.GEMMA3) else 10_000.0
    layer_type = "full_attention" if family is Family.GEMMA3 else None
    rope = parse_rope(
        fields, head_dim=head_dim, context=context, default_theta=theta, layer_type=layer_type
    )
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layers=(LayerConfig(rope=rope),) * fields.integer("num_hidden_layers", maximum=MAX_LAYERS),
        norm_eps=fields.number(
            "rms_norm_eps", 1e-5 if family in (Family.PHI3, Family.MIXTRAL) else 1e-6
        ),
        context_length=context if layer_type else rope_context(fields, context),
        tied_embeddings=fields.boolean("tie_word_embeddings", family is Family.GEMMA3),
        activation=_activation(fields, family),
        attention_scale=head_dim**-0.5,
        weights_dtype=_weights_dtype(fields),
    )


_DEFAULT_KV_HEADS = {Family.MISTRAL: 8, Family.MIXTRAL: 8, Family.QWEN3_MOE: 4, Family.GEMMA3: 4}
_DEFAULT_HEAD_DIM = {Family.QWEN3: 128, Family.GEMMA3: 256}


def _activation(fields: Fields, family: Family) -> Activation:
    gemma = family is Family.GEMMA3
    name = "hidden_activation" if gemma else "hidden_act"
    text = fields.text(name, "gelu_pytorch_tanh" if gemma else "silu")
    if text not in _ACTIVATIONS:
        fields.fail(name, text, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[text]


def _weights_dtype(fields: Fields) -> str:
    name = "dtype" if "dtype" in fields else "torch_dtype"
    text = fields.text(name, "float32").removeprefix("torch.")
    if text not in _DTYPES:
        fields.fail(name, text, f"one of {', '.join(_DTYPES)}")
    return text


def _llama(config: ModelConfig, fields: Fields) -> ModelConfig:
    bias = fields.boolean("attention_bias", False)
    return replace(
        config, qkv_bias=bias, output_bias=bias, mlp_bias=fields.boolean("mlp_bias", False)
    )


def _mistral(config: ModelConfig, fields: Fields) -> ModelConfig:
    return _windowed(config, fields.nullable_integer("sliding_window", 4096))


def _phi3(config: ModelConfig, fields: Fields) -> ModelConfig:
    return _windowed(config, fields.nullable_integer("sliding_window", None))


def _qwen2(config: ModelConfig, fields: Fields) -> ModelConfig:
    return replace(_upper_layers_windowed(config, fields), qkv_bias=True)


def _qwen3(config: ModelConfig, fields: Fields) -> ModelConfig:
    bias = fields.boolean("attention_bias", False)
    config = _upper_layers_windowed(config, fields)
    return replace(config, qkv_bias=bias, output_bias=bias, qk_norm=True)


def _mixtral(config: ModelConfig, fields: Fields) -> ModelConfig:
    moe = MoeConfig(
        num_experts=fields.integer("num_local_experts", 8),
        top_k=fields.integer("num_experts_per_tok", 2),
        intermediate_size=config.intermediate_size,
        renormalise=True,
    )
    config = _windowed(config, fields.nullable_integer("sliding_window", None))
    return _with_experts(config, fields, moe, dense_layers=frozenset())


def _qwen3_moe(config: ModelConfig, fields: Fields) -> ModelConfig:
    bias = fields.boolean("attention_bias", False)
    # transformers 5 writes the count under Mixtral's name.
    count = "num_experts" if "num_experts" in fields else "num_local_experts"
    moe = MoeConfig(
        num_experts=fields.integer(count, 128),
        top_k=fields.integer("num_experts_per_tok", 8),
        intermediate_size=fields.integer("moe_intermediate_size", 768),
        renormalise=fields.boolean("norm_topk_prob", False),
    )
    step = fields.integer("decoder_sparse_step", 1)
    named = fields.items("mlp_only_layers", int) or []
    dense = frozenset(named) | {i for i in range(config.num_layers) if (i + 1) % step}
    window = fields.nullable_integer("sliding_window", 4096)
    config = _windowed(config, window if fields.boolean("use_sliding_window", False) else None)
    config = replace(config, qkv_bias=bias, output_bias=bias, qk_norm=True)
    return _with_experts(config, fields, moe, dense_layers=dense)


def _gemma3(config: ModelConfig, fields: Fields) -> ModelConfig:
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if name in fields:
            fields.fail(name, fields.raw(name), "null (soft-capping is not supported)")
    if fields.boolean("use_bidirectional_attention", False):
        fields.fail("use_bidirectional_attention", True, "false")
    local = parse_rope(
        fields,
        head_dim=config.head_dim,
        context=config.context_length,
        theta_field="rope_local_base_freq",
        layer_type="sliding_attention",
    )
    window = fields.integer("sliding_window", 4096)
    pattern = fields.integer("sliding_window_pattern", 6)
    sliding = _sliding_layers(fields, config.num_layers)
    if sliding is None:
        sliding = [bool((i + 1) % pattern) for i in range(config.num_layers)]
    bias = fields.boolean("attention_bias", False)
    full = config.layers[0]
    return replace(
        config,
        layers=tuple(LayerConfig(rope=local, window=window) if s else full for s in sliding),
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        norm_offset=True,
        sandwich_norms=True,
        embedding_scale=config.hidden_size**0.5,
    )


def _windowed(config: ModelConfig, window: int | None) -> ModelConfig:
    return replace(config, layers=tuple(replace(layer, window=window) for layer in config.layers))


def _upper_layers_windowed(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Qwen: windows, if used, from max_window_layers on, or where layer_types says."""
    window = fields.nullable_integer("sliding_window", 4096)
    if window is None or not fields.boolean("use_sliding_window", False):
        return config
    first = fields.integer("max_window_layers", 28, minimum=0)
    sliding = _sliding_layers(fields, config.num_layers)
    if sliding is None:
        sliding = [i >= first for i in range(config.num_layers)]
    layers = zip(config.layers, sliding, strict=True)
    return replace(
        config, layers=tuple(replace(c, window=window if s else None) for c, s in layers)
    )


def _sliding_layers(fields: Fields, num_layers: int) -> list[bool] | None:
    types = fields.items("layer_types", str, num_layers)
    if types is None:
        return None
    known = {"sliding_attention", "full_attention"}
    if set(types) - known:
        fields.fail("layer_types", types, f"a list of {' and '.join(sorted(known))}")
    return [name == "sliding_attention" for name in types]


def _with_experts(
    config: ModelConfig, fields: Fields, moe: MoeConfig, *, dense_layers: frozenset[int]
) -> ModelConfig:
    if moe.top_k > moe.num_experts:
        fields.fail("num_experts_per_tok", moe.top_k, f"at most the {moe.num_experts} experts")
    layers = (replace(layer, sparse=i not in dense_layers) for i, layer in enumerate(config.layers))
    return replace(config, layers=tuple(layers), moe=moe)


_FAMILIES: dict[Family, Callable[[ModelConfig, Fields], ModelConfig]] = {
    Family.LLAMA: _llama,
    Family.MISTRAL: _mistral,
    Family.QWEN2: _qwen2,
    Family.QWEN3: _qwen3,
    Family.PHI3: _phi3,
    Family.MIXTRAL: _mixtral,
    Family.QWEN3_MOE: _qwen3_moe,
    Family.GEMMA3: _gemma3,
}
