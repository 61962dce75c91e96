"""The decoder, written once, in the stages of which engines, profiler and latency model speak.

`embed -> layers x (pre_attention -> attention -> post_attention) -> head`. Attention itself and
the paged KV belong to the caller. Rows are tokens, of any sequences in any order. Callers run it
under torch.inference_mode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dualpace.checkpoint import LayerConfig, ModelConfig
from dualpace.models.linear import Linear
from dualpace.models.norm import RmsNorm
from dualpace.models.rope import rotate

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Loaded parts of one layer."""

    config: LayerConfig
    input_norm: RmsNorm
    qkv: Linear
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None
    output: Linear
    output_norm: RmsNorm | None
    """Of the attention output, before it is added (Gemma)."""
    feed_forward_norm: RmsNorm
    feed_forward: Map
    feed_forward_output_norm: RmsNorm | None
    rope_table: Tensor
    """[positions, rotary_dim]; shared by layers of equal rope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderEnds:
    """Loaded parts before and behind the layers."""

    embedding: Tensor
    """[V, H]"""
    embedding_scale: float
    final_norm: RmsNorm
    output_head: Linear


class Decoder:
    """A loaded model. H is the hidden size, V the vocabulary size, T any number of tokens."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding: Tensor,
        layers: Sequence[DecoderLayer],
        final_norm: RmsNorm,
        output_head: Linear,
    ) -> None:
        self.config = config
        self.dtype = embedding.dtype
        self.device = embedding.device
        self.max_positions = layers[0].rope_table.shape[0]
        """Positions that pre_attention knows: 0 .. max_positions - 1."""
        self.layers = layers
        self.ends = DecoderEnds(
            embedding=embedding,
            # transformers rounds the factor to the weights' dtype before it multiplies.
            embedding_scale=float(torch.tensor(config.embedding_scale, dtype=self.dtype)),
            final_norm=final_norm,
            output_head=output_head,
        )
        self._head_counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def window(self, layer: int) -> int | None:
        """Return the layer's sliding window, or None."""
        return self.layers[layer].config.window

    def attention_scale(self, layer: int) -> float:
        """Return what the layer's query-key products are multiplied by."""
        assert 0 <= layer < len(self.layers)
        return self.config.attention_scale

    def embed(self, token_ids: Tensor) -> Tensor:
        """Map token ids, int64 [T], to hidden states [T, H]."""
        hidden = functional.embedding(token_ids, self.ends.embedding)
        scale = self.ends.embedding_scale
        return hidden if scale == 1.0 else hidden * scale

    def pre_attention(
        self, layer: int, hidden: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map hidden [T, H] at positions, int64 [T], to q, k and v.

        q is [T, heads, head_dim], k and v are [T, kv_heads, head_dim]. q and k are normalised
        where the model does so, and rotated. q and k are contiguous; v may be a strided view.
        """
        parts = self.layers[layer]
        qkv = parts.qkv(parts.input_norm(hidden))
        heads = qkv.view(len(hidden), sum(self._head_counts), self.config.head_dim)
        q, k, v = torch.split(heads, self._head_counts, dim=1)
        if parts.q_norm is not None and parts.k_norm is not None:
            q, k = parts.q_norm(q), parts.k_norm(k)
        cos_sin = parts.rope_table[positions]
        return rotate(q, cos_sin), rotate(k, cos_sin), v

    def post_attention(self, layer: int, attention_output: Tensor, hidden: Tensor) -> Tensor:
        """Map attention output [T, heads, head_dim] to the layer's hidden output [T, H].

        `hidden` [T, H] is what pre_attention was given.
        """
        parts = self.layers[layer]
        attended = parts.output(attention_output.flatten(1).to(self.dtype))
        if parts.output_norm is not None:
            attended = parts.output_norm(attended)
        hidden = hidden + attended
        fed = parts.feed_forward(parts.feed_forward_norm(hidden))
        if parts.feed_forward_output_norm is not None:
            fed = parts.feed_forward_output_norm(fed)
        return hidden + fed

    def head(self, hidden: Tensor) -> Tensor:
        """Map hidden [R, H] to logits, float32 [R, V]. Give it only the rows that are sampled."""
        return self.ends.output_head(self.ends.final_norm(hidden)).float()
