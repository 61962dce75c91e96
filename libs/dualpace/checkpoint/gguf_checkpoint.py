"""A GGUF file as a `Checkpoint`: Hugging Face names, un-permuted rows, dequantised values."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from dualpace.checkpoint.checkpoint import TensorInfo
from dualpace.checkpoint.config import Family, ModelConfig
from dualpace.checkpoint.fields import Fields
from dualpace.checkpoint.fingerprint import fingerprint
from dualpace.checkpoint.generation import GenerationDefaults, token_ids
from dualpace.checkpoint.gguf_config import gguf_config
from dualpace.checkpoint.gguf_container import GgufContainer, GgufTensor
from dualpace.checkpoint.gguf_tokenizer import gguf_tokenizer
from dualpace.checkpoint.tokenizer import TokenizerAssets
from dualpace.core.errors import CheckpointError

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PHI3_IN_LAYER = {**_IN_LAYER, "ffn_up": "mlp.gate_up_proj"}
"""Phi-3 stores gate and up as one, under the name of up."""
_READ_INTO_CONFIG = frozenset(
    {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"}
)
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufCheckpoint:
    """`Checkpoint` of one GGUF file."""

    def __init__(self, path: Path) -> None:
        """Parse the header.

        Raises CheckpointError if the file is damaged or the model not supported.
        """
        self.path = path
        if re.search(r"-\d{5}-of-\d{5}\.gguf$", path.name):
            raise CheckpointError(f"{path}: split GGUF files are not read; merge the parts first")
        self._container = GgufContainer(path)
        self.config: ModelConfig = gguf_config(self._container)
        self.generation = self._generation()
        self._tensors = self._named()

    @cached_property
    def fingerprint(self) -> bytes:
        """See Checkpoint."""
        return fingerprint(
            self.config, self.tensor_infos(), lambda name: self._container.raw(self._tensors[name])
        )

    def tokenizer(self) -> TokenizerAssets:
        """See Checkpoint."""
        return gguf_tokenizer(self._container.values, str(self.path))

    def tensor_infos(self) -> Mapping[str, TensorInfo]:
        """See Checkpoint."""
        return {
            name: TensorInfo(name, tensor.kind.name, tensor.shape)
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str) -> NDArray[Any]:
        """See Checkpoint."""
        tensor = self._tensors[name]
        values = self._values(tensor)
        if self.config.family is Family.LLAMA:
            heads = {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads}
            part = name.split(".")[-2]
            if part in heads:
                return _unpermuted(values, heads[part])
        return values

    def _values(self, tensor: GgufTensor) -> NDArray[Any]:
        raw = self._container.raw(tensor)
        direct = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
        if tensor.kind.name in direct:
            return raw.view(direct[tensor.kind.name]).reshape(tensor.shape)
        try:
            rows = raw.reshape(*tensor.shape[:-1], -1)
            values: NDArray[Any] = dequantize(rows, GGMLQuantizationType(tensor.kind))
        except NotImplementedError:
            raise CheckpointError(
                f"{self.path}: tensor {tensor.name!r} is of ggml type {tensor.kind.name}, which "
                "cannot be dequantised"
            ) from None
        return values.astype(np.float32, copy=False).reshape(tensor.shape)

    def _named(self) -> dict[str, GgufTensor]:
        """Return every tensor that holds weights, by its Hugging Face name."""
        in_layer = _PHI3_IN_LAYER if self.config.family is Family.PHI3 else _IN_LAYER
        return {
            _huggingface_name(name, in_layer): tensor
            for name, tensor in self._container.tensors.items()
            if name not in _READ_INTO_CONFIG
        }

    def _generation(self) -> GenerationDefaults:
        fields = Fields(self._container.values, str(self.path))
        names = ("eos_token_id", "eot_token_id", "eom_token_id")
        ids = [i for name in names for i in token_ids(fields, f"tokenizer.ggml.{name}")]
        return GenerationDefaults(eos_token_ids=tuple(dict.fromkeys(ids)))


def _huggingface_name(name: str, in_layer: Mapping[str, str]) -> str:
    """Translate a GGUF tensor name; one that is not known keeps its own, within its layer."""
    match = _LAYER_NAME.fullmatch(name)
    if match is not None:
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{in_layer.get(part, part)}.{kind}"
    part, _, kind = name.partition(".")
    return f"{_TOP[part]}.{kind}" if part in _TOP else name


def _unpermuted(rows: NDArray[Any], num_heads: int) -> NDArray[Any]:
    """Undo the interleaving of each head's halves in a llama file's query and key rows."""
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
