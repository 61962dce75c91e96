"""config.json of every family, of both generations of transformers, and of damaged kinds."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dualpace.checkpoint import (
    Activation,
    Family,
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    MoeConfig,
    YarnScaling,
)
from dualpace.checkpoint.huggingface_config import parse_config
from dualpace.core.errors import CheckpointError

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "gold" / "tiny_configs.json").read_text()
)


def parse(name: str, **fields: Any) -> ModelConfig:
    values = {**CONFIGS[name], **fields}
    return parse_config({k: v for k, v in values.items() if v != "absent"}, "config.json")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("llama3_rope", Family.LLAMA),
        ("mistral", Family.MISTRAL),
        ("qwen2", Family.QWEN2),
        ("qwen3", Family.QWEN3),
        ("phi3", Family.PHI3),
        ("mixtral", Family.MIXTRAL),
        ("qwen3_moe", Family.QWEN3_MOE),
        ("gemma3", Family.GEMMA3),
    ],
)
def test_the_family_is_told_by_architecture_or_model_type(name: str, family: Family) -> None:
    assert parse(name).family is family
    assert parse(name, architectures="absent").family is family


def test_sizes_are_taken_over() -> None:
    config = parse("qwen3")
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (49152, 128, 256)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 48)
    assert config.num_layers == 3
    assert config.norm_eps == 1e-6
    assert config.context_length == 1024
    assert config.attention_scale == 48**-0.5
    assert config.weights_dtype == "bfloat16"
    assert config.kv_bytes_per_token(2) == 2 * 3 * 2 * 48 * 2


# What transformers 5 makes of the same models: (fields removed, fields added).
VERSION_5: dict[str, tuple[list[str], dict[str, Any]]] = {
    "llama3_rope": (
        ["rope_theta", "rope_scaling", "torch_dtype"],
        {
            "dtype": "bfloat16",
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen2_yarn_window": (
        ["rope_theta", "rope_scaling", "max_window_layers"],
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "phi3_longrope": (
        ["rope_theta", "rope_scaling"],
        {
            "rope_parameters": {
                **CONFIGS["phi3_longrope"]["rope_scaling"],
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "original_max_position_embeddings": 1024,
            }
        },
    ),
    "gemma3": (
        ["rope_theta", "rope_local_base_freq"],
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            }
        },
    ),
    "qwen3_moe": (["num_experts"], {"num_local_experts": 8}),
}


@pytest.mark.parametrize("name", VERSION_5)
def test_both_generations_of_files_mean_the_same(name: str) -> None:
    removed, added = VERSION_5[name]
    assert parse(name, **dict.fromkeys(removed, "absent"), **added) == parse(name)


def test_llama_biases() -> None:
    plain, biased = parse("llama3_rope"), parse("llama_v5cfg_bias")
    assert (plain.qkv_bias, plain.output_bias, plain.mlp_bias) == (False, False, False)
    assert (biased.qkv_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)
    assert biased.tied_embeddings
    assert not plain.tied_embeddings


def test_qwen2_always_has_qkv_biases_and_no_others() -> None:
    config = parse("qwen2")
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, False, False)
    assert config.head_dim == 16


def test_mistral_windows() -> None:
    def windows(**fields: Any) -> set[int | None]:
        return {layer.window for layer in parse("mistral", **fields).layers}

    assert windows() == {32}
    assert windows(sliding_window=None) == {None}
    assert windows(sliding_window="absent") == {4096}


def test_qwen_windows_start_at_a_layer_and_only_if_used() -> None:
    def windows(**fields: Any) -> list[int | None]:
        return [layer.window for layer in parse("qwen2_yarn_window", **fields).layers]

    assert windows() == [None, 16, 16]
    assert windows(max_window_layers=0) == [16, 16, 16]
    assert windows(use_sliding_window=False) == [None, None, None]
    assert windows(layer_types=["sliding_attention", "full_attention", "full_attention"]) == [
        16,
        None,
        None,
    ]


def test_gemma_layers_alternate() -> None:
    config = parse("gemma3")
    assert [layer.window for layer in config.layers] == [16, 16, None]
    assert [layer.rope.theta for layer in config.layers] == [10000.0, 10000.0, 1000000.0]
    assert config.embedding_scale == 96**0.5
    assert config.attention_scale == 24**-0.5
    assert config.activation is Activation.GELU_TANH
    assert config.norm_offset
    assert config.sandwich_norms
    assert config.qk_norm


def test_gemma_pattern_and_scaling_of_older_files() -> None:
    config = parse(
        "gemma3",
        layer_types="absent",
        num_hidden_layers=7,
        sliding_window_pattern=3,
        rope_scaling={"factor": 8.0, "rope_type": "linear"},
    )
    assert [layer.window is None for layer in config.layers] == [
        False, False, True, False, False, True, False,
    ]  # fmt: skip
    # Only layers that see everything are stretched.
    for layer in config.layers:
        expected = LinearScaling(factor=8.0) if layer.window is None else None
        assert layer.rope.scaling == expected


def test_mixtures_of_experts() -> None:
    assert parse("mixtral").moe == MoeConfig(
        num_experts=4, top_k=2, intermediate_size=128, renormalise=True
    )
    qwen = parse("qwen3_moe")
    assert qwen.moe == MoeConfig(num_experts=8, top_k=2, intermediate_size=48, renormalise=True)
    assert [layer.sparse for layer in qwen.layers] == [True, False, True]
    every_second = parse("qwen3_moe", mlp_only_layers=[], decoder_sparse_step=2)
    assert [layer.sparse for layer in every_second.layers] == [False, True, False]
    plain = parse("qwen3_moe", norm_topk_prob="absent").moe
    assert plain is not None
    assert not plain.renormalise


def test_rope_scalings() -> None:
    def scaling(name: str, **fields: Any) -> object:
        return parse(name, **fields).layers[0].rope.scaling

    assert scaling("qwen2") is None
    assert scaling("qwen2", rope_scaling={"type": "linear", "factor": 2}) == LinearScaling(
        factor=2.0
    )
    assert scaling("llama3_rope") == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64
    )
    yarn = YarnScaling(
        factor=4.0,
        original_context=64,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=True,
        attention_factor=0.1 * math.log(4.0) + 1.0,
    )
    assert scaling("qwen2_yarn_window") == yarn
    long = scaling("phi3_longrope")
    assert isinstance(long, FrequencyFactors)
    assert long.factors == tuple(1.0 + 0.25 * i for i in range(12))
    assert long.attention_factor == math.sqrt(1 + math.log(4) / math.log(1024))


def test_yarn_details() -> None:
    settings = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

    def attention(**more: float) -> float:
        found = parse("qwen2", rope_scaling={**settings, **more}).layers[0].rope.scaling
        assert isinstance(found, YarnScaling)
        return found.attention_factor

    assert attention(attention_factor=0.5) == 0.5
    both = attention(mscale=2.0, mscale_all_dim=0.5)
    assert both == (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1)


def test_context_lengths() -> None:
    # LongRoPE is served up to its original context, YaRN up to the stretched one.
    assert parse("phi3_longrope").context_length == 1024
    assert parse("qwen2_yarn_window").context_length == 256
    assert parse("qwen2_yarn_window", max_position_embeddings=64).context_length == 256
    assert parse("llama3_rope").context_length == 2048


def test_partial_rotation() -> None:
    assert parse("phi3").layers[0].rope.rotary_dim == 32
    assert parse("phi3_longrope").layers[0].rope.rotary_dim == 24


def test_defaults_of_absent_fields() -> None:
    config = parse(
        "llama3_rope",
        num_key_value_heads="absent",
        head_dim="absent",
        rope_theta="absent",
        rope_scaling="absent",
        torch_dtype="absent",
        hidden_act="absent",
        rms_norm_eps="absent",
        tie_word_embeddings="absent",
    )
    assert (config.num_kv_heads, config.head_dim, config.norm_eps) == (4, 32, 1e-6)
    assert config.layers[0].rope.theta == 10000.0
    assert config.weights_dtype == "float32"
    assert not config.tied_embeddings
    assert parse("gemma3", tie_word_embeddings="absent").tied_embeddings


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("qwen2", {"architectures": ["FalconForCausalLM"]},
         r"FalconForCausalLM is not supported.*LlamaForCausalLM.*Gemma3ForCausalLM"),
        ("qwen2", {"architectures": "absent", "model_type": "rwkv"}, "model_type 'rwkv' is not"),
        ("qwen2", {"quantization_config": {"quant_method": "gptq"}}, r"quantised.*'gptq'"),
        ("qwen2", {"hidden_size": "96"}, r"'hidden_size' is '96' \(a string\); a whole number"),
        ("qwen2", {"hidden_size": True}, r"'hidden_size' is True \(a boolean\)"),
        ("qwen2", {"hidden_size": 96.5}, r"'hidden_size' is 96\.5 \(a number\); a whole number"),
        ("qwen2", {"vocab_size": 0}, r"'vocab_size' is 0 .*at least 1"),
        ("qwen2", {"num_hidden_layers": -2}, r"'num_hidden_layers' is -2"),
        ("qwen2", {"num_hidden_layers": 10**9}, r"'num_hidden_layers'.*from 1 to 4096"),
        ("qwen2", {"num_attention_heads": "absent"}, r"'num_attention_heads' is missing"),
        ("qwen2", {"num_key_value_heads": 4}, r"6 attention heads cannot share 4 KV heads"),
        ("qwen2", {"rms_norm_eps": 0}, r"'rms_norm_eps' is 0 .*positive number"),
        ("qwen2", {"rms_norm_eps": math.nan}, r"'rms_norm_eps' is nan .*positive number"),
        ("qwen2", {"rope_theta": math.inf}, r"'rope_theta' is inf .*positive number"),
        ("qwen2", {"tie_word_embeddings": 1}, r"'tie_word_embeddings' is 1 .*true or false"),
        ("qwen2", {"hidden_act": "relu"}, r"'hidden_act' is 'relu' .*silu"),
        ("qwen2", {"torch_dtype": "float8_e4m3fn"}, r"'torch_dtype'.*bfloat16"),
        ("qwen2", {"rope_scaling": "yarn"}, r"'rope_scaling' is 'yarn' .*an object"),
        ("qwen2", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
         r"rope type 'dynamic' is not supported; supported are default, linear, llama3, yarn"),
        ("qwen2", {"rope_scaling": {"rope_type": "linear"}}, r"rope_scaling: field 'factor' is"),
        ("qwen2", {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "by layer type"),
        ("qwen2", {"head_dim": 15}, "head_dim 15 is odd"),
        ("phi3", {"partial_rotary_factor": 0.1}, "gives 3 rotated dimensions"),
        ("phi3_longrope", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
         r"'short_factor' is \[1\.0\] .*a list of 12"),
        ("phi3_longrope", {"rope_scaling": {"type": "longrope"}}, r"'short_factor' is missing"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "soft-capping is not supported"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"layer_types": ["sliding_attention"]}, r"'layer_types'.*a list of 3"),
        ("gemma3", {"layer_types": ["linear_attention"] * 3}, r"'layer_types'.*full_attention"),
        ("mixtral", {"num_experts_per_tok": 5}, r"'num_experts_per_tok' is 5 .*the 4 experts"),
        ("mixtral", {"num_local_experts": "4"}, r"'num_local_experts' is '4'"),
        ("qwen3_moe", {"mlp_only_layers": ["1"]}, r"'mlp_only_layers'.*a list of"),
    ],
)  # fmt: skip
def test_errors_name_the_field_and_what_is_allowed(
    name: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        parse(name, **fields)
    assert "config.json" in str(caught.value)


def test_a_context_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(CheckpointError, match="max_position_embeddings"):
        parse("llama3_rope", max_position_embeddings=10**12)
