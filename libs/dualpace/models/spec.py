"""Which stored tensors, of which names and shapes, make up a model.

Every linear map is a stack of one or more stored tensors along their rows: q, k and v become one,
gate and up become one, whether a checkpoint stores them apart or fused.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dualpace.checkpoint import Family, ModelConfig


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that must be in the checkpoint."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """A linear map: weights stacked along their rows, and biases likewise or none."""

    weights: tuple[TensorSpec, ...]
    biases: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """A gated MLP."""

    gate_up: LinearSpec
    down: LinearSpec


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A mixture of experts."""

    router: LinearSpec
    experts: tuple[MlpSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One layer. The optional norms are those of Decoder's layers."""

    input_norm: TensorSpec
    qkv: LinearSpec
    q_norm: TensorSpec | None
    k_norm: TensorSpec | None
    output: LinearSpec
    output_norm: TensorSpec | None
    feed_forward_norm: TensorSpec
    feed_forward: MlpSpec | MoeSpec
    feed_forward_output_norm: TensorSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A whole model."""

    embedding: TensorSpec
    layers: tuple[LayerSpec, ...]
    final_norm: TensorSpec
    head: TensorSpec | None
    """None: the embedding serves."""


def model_spec(config: ModelConfig) -> ModelSpec:
    """Return what a checkpoint of this config must hold."""
    matrix = (config.vocab_size, config.hidden_size)
    return ModelSpec(
        embedding=TensorSpec("model.embed_tokens.weight", matrix),
        layers=tuple(_layer_spec(config, layer) for layer in range(config.num_layers)),
        final_norm=TensorSpec("model.norm.weight", (config.hidden_size,)),
        head=None if config.tied_embeddings else TensorSpec("lm_head.weight", matrix),
    )


def tensor_specs(node: object) -> Iterator[TensorSpec]:
    """Yield every TensorSpec within a spec, in the order in which a loader needs them."""
    if isinstance(node, TensorSpec):
        yield node
    elif isinstance(node, tuple):
        for item in node:
            yield from tensor_specs(item)
    elif isinstance(node, LinearSpec | MlpSpec | MoeSpec | LayerSpec | ModelSpec):
        for name in node.__slots__:
            yield from tensor_specs(getattr(node, name))


def _layer_spec(config: ModelConfig, layer: int) -> LayerSpec:
    prefix = f"model.layers.{layer}."
    attention = prefix + "self_attn."
    hidden = (config.hidden_size,)
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    head = (config.head_dim,)

    def norm(name: str) -> TensorSpec:
        return TensorSpec(f"{prefix}{name}.weight", hidden)

    sandwich = config.sandwich_norms
    return LayerSpec(
        input_norm=norm("input_layernorm"),
        qkv=_qkv_spec(config, attention, q_rows, kv_rows),
        q_norm=TensorSpec(attention + "q_norm.weight", head) if config.qk_norm else None,
        k_norm=TensorSpec(attention + "k_norm.weight", head) if config.qk_norm else None,
        output=_linear(
            attention, ["o_proj"], [config.hidden_size], q_rows, bias=config.output_bias
        ),
        output_norm=norm("post_attention_layernorm") if sandwich else None,
        feed_forward_norm=norm(
            "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
        ),
        feed_forward=_feed_forward_spec(config, layer, prefix),
        feed_forward_output_norm=norm("post_feedforward_layernorm") if sandwich else None,
    )


def _qkv_spec(config: ModelConfig, prefix: str, q_rows: int, kv_rows: int) -> LinearSpec:
    if config.family is Family.PHI3:
        return _linear(prefix, ["qkv_proj"], [q_rows + 2 * kv_rows], config.hidden_size)
    rows = [q_rows, kv_rows, kv_rows]
    names = ["q_proj", "k_proj", "v_proj"]
    return _linear(prefix, names, rows, config.hidden_size, bias=config.qkv_bias)


def _feed_forward_spec(config: ModelConfig, layer: int, prefix: str) -> MlpSpec | MoeSpec:
    if config.moe is None or not config.layers[layer].sparse:
        return _mlp_spec(config, prefix + "mlp.", config.intermediate_size)
    mixtral = config.family is Family.MIXTRAL
    block = prefix + ("block_sparse_moe." if mixtral else "mlp.")
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    return MoeSpec(
        router=_linear(block, ["gate"], [config.moe.num_experts], config.hidden_size),
        experts=tuple(
            _mlp_spec(config, f"{block}experts.{expert}.", config.moe.intermediate_size, names)
            for expert in range(config.moe.num_experts)
        ),
    )


def _mlp_spec(
    config: ModelConfig,
    prefix: str,
    inner: int,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> MlpSpec:
    gate, up, down = names
    hidden, bias = config.hidden_size, config.mlp_bias
    fused = config.family is Family.PHI3
    return MlpSpec(
        gate_up=_linear(prefix, ["gate_up_proj"], [2 * inner], hidden)
        if fused
        else _linear(prefix, [gate, up], [inner, inner], hidden, bias=bias),
        down=_linear(prefix, [down], [hidden], inner, bias=bias),
    )


def _linear(
    prefix: str, names: list[str], rows: list[int], columns: int, *, bias: bool = False
) -> LinearSpec:
    pairs = list(zip(names, rows, strict=True))
    return LinearSpec(
        weights=tuple(TensorSpec(f"{prefix}{name}.weight", (n, columns)) for name, n in pairs),
        biases=tuple(TensorSpec(f"{prefix}{name}.bias", (n,)) for name, n in pairs) if bias else (),
    )
