"""A loaded Decoder as the native kernels take it: the same parts, run by one call a step.

Importing this module needs the kernel library.
"""

from torch import Tensor

from dualpace.checkpoint import LayerConfig
from dualpace.kernels import DecoderSizes, HostDecoder, HostLayer, PackedLinear
from dualpace.models.decoder import Decoder, DecoderLayer
from dualpace.models.feed_forward import GatedMlp
from dualpace.models.host_step import UnsupportedModelError
from dualpace.models.linear import Linear
from dualpace.models.native_linear import NativeLinear
from dualpace.models.norm import RmsNorm

_INNER_MULTIPLE = 16
_HEAD_DIM_MULTIPLE = 8
_MAX_HEAD_DIM = 256


def native_decoder(decoder: Decoder, *, screening_threads: int = 0) -> HostDecoder:
    """Return the same model for the native kernels. It shares the decoder's packed weights.

    `screening_threads`: see HostDecoder.
    Raises UnsupportedModelError where a part is not packed, or of a kind that has no native form.
    """
    config, ends = decoder.config, decoder.ends
    if any(layer.sparse for layer in config.layers):
        raise UnsupportedModelError("mixtures of experts run in stages")
    if config.head_dim % _HEAD_DIM_MULTIPLE or config.head_dim > _MAX_HEAD_DIM:
        raise UnsupportedModelError(f"heads of {config.head_dim} have no native attention")
    if config.intermediate_size % _INNER_MULTIPLE:
        raise UnsupportedModelError(
            f"a feed-forward size of {config.intermediate_size} is no multiple of {_INNER_MULTIPLE}"
        )
    tables: dict[int, Tensor] = {}
    sizes = DecoderSizes(
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        inner=config.intermediate_size,
        norm_eps=config.norm_eps,
        attention_scale=config.attention_scale,
        embedding_scale=ends.embedding_scale,
    )
    return HostDecoder(
        sizes,
        embedding=ends.embedding,
        final_norm=ends.final_norm.factor,
        head=packed_of(ends.output_head),
        layers=[_layer(layer, layer.config, tables) for layer in decoder.layers],
        screening_threads=screening_threads,
    )


def _layer(layer: DecoderLayer, config: LayerConfig, tables: dict[int, Tensor]) -> HostLayer:
    mlp = _mlp_of(layer)
    # Layers of equal rope share a table: it is converted once.
    rope = tables.setdefault(id(layer.rope_table), layer.rope_table.float().contiguous())
    return HostLayer(
        input_norm=layer.input_norm.factor,
        qkv=packed_of(layer.qkv),
        q_norm=_factor(layer.q_norm),
        k_norm=_factor(layer.k_norm),
        output=packed_of(layer.output),
        output_norm=_factor(layer.output_norm),
        feed_forward_norm=layer.feed_forward_norm.factor,
        gate_up=packed_of(mlp.gate_up),
        down=packed_of(mlp.down),
        feed_forward_output_norm=_factor(layer.feed_forward_output_norm),
        rope=rope,
        activation=mlp.activation.value,
        window=config.window or 0,
    )


def _mlp_of(layer: DecoderLayer) -> GatedMlp:
    if not isinstance(layer.feed_forward, GatedMlp):
        raise UnsupportedModelError("its feed-forward stage is no gated MLP")
    return layer.feed_forward


def _factor(norm: RmsNorm | None) -> Tensor | None:
    return None if norm is None else norm.factor


def layer_bytes(layer: DecoderLayer) -> int:
    """Return the bytes of a layer's packed weights."""
    mlp = _mlp_of(layer)
    linears = (layer.qkv, layer.output, mlp.gate_up, mlp.down)
    return sum(packed_of(linear).num_bytes for linear in linears)


def packed_of(linear: Linear) -> PackedLinear:
    """Return the packed weights; raises UnsupportedModelError where there are none."""
    if not isinstance(linear, NativeLinear):
        raise UnsupportedModelError("its linear maps are torch's")
    return linear.packed
