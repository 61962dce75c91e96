"""Turns a checkpoint into a Decoder: checks every tensor first, then reads one at a time.

At no time is more held than the finished part of the model and the tensor being read.
"""

import logging
import re
from collections.abc import Callable

import torch

from dualpace.checkpoint import Checkpoint, ModelConfig, RopeConfig
from dualpace.core.errors import CheckpointError
from dualpace.models.decoder import Decoder, DecoderLayer, Map
from dualpace.models.feed_forward import GatedMlp, MixtureOfExperts
from dualpace.models.linear import Linear, LinearFactory, torch_linear
from dualpace.models.norm import RmsNorm
from dualpace.models.rope import rope_table
from dualpace.models.spec import (
    LayerSpec,
    LinearSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    TensorSpec,
    model_spec,
    tensor_specs,
)
from dualpace.models.weights import WeightReader

_log = logging.getLogger(__name__)
_DERIVED = re.compile(r"\.rotary_emb\.inv_freq$")
"""Tensors that old checkpoints store although they follow from the config."""


def load_decoder(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    linear: LinearFactory = torch_linear,
    progress: Callable[[float], None] | None = None,
    max_positions: int | None = None,
) -> Decoder:
    """Load a model's weights in `dtype` on `device`.

    `linear` makes every large product (router products stay in torch). `progress` hears the loaded
    share, 0 .. 1. `max_positions` limits the rope tables; None: the model's context length. Raises
    CheckpointError, before any data is read, that names the first missing, misshapen or unknown
    tensor.
    """
    config = checkpoint.config
    spec = model_spec(config)
    check_tensors(checkpoint, spec)
    reader = WeightReader(checkpoint, spec, dtype=dtype, device=device, progress=progress)
    positions = config.context_length if max_positions is None else max_positions
    return _Assembly(config, reader, linear).decoder(spec, positions)


def check_tensors(checkpoint: Checkpoint, spec: ModelSpec) -> None:
    """Raise CheckpointError unless the checkpoint holds what the spec says, in the right shapes."""
    infos = checkpoint.tensor_infos()
    wanted = {tensor.name: tensor.shape for tensor in tensor_specs(spec)}
    for name, shape in wanted.items():
        if name not in infos:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name!r} of shape {list(shape)} is missing"
            )
        if infos[name].shape != shape:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name!r} has shape {list(infos[name].shape)}; "
                f"its config needs {list(shape)}"
            )
    extra = sorted(name for name in infos if name not in wanted and not _DERIVED.search(name))
    in_layers = tuple(f"model.layers.{layer}." for layer in range(len(spec.layers)))
    unknown = [name for name in extra if name.startswith(in_layers)]
    if unknown:
        raise CheckpointError(
            f"{checkpoint.path}: {len(unknown)} tensors inside the layers are not accounted for by "
            f"the config, so the model would compute something else: {', '.join(unknown[:4])}"
        )
    if extra:
        names = ", ".join(extra[:4])
        _log.warning("%s: %d tensors are not used: %s", checkpoint.path, len(extra), names)


class _Assembly:
    """Builds the parts of a decoder from their specs, in the order of the model."""

    def __init__(self, config: ModelConfig, reader: WeightReader, linear: LinearFactory) -> None:
        self._config = config
        self._reader = reader
        self._linear = linear

    def decoder(self, spec: ModelSpec, positions: int) -> Decoder:
        """Load everything, with rope tables for that many positions."""
        reader = self._reader
        ropes = {layer.rope for layer in self._config.layers}
        tables = {
            rope: rope_table(rope, positions, dtype=reader.dtype, device=reader.device)
            for rope in ropes
        }
        embedding = reader.stacked((spec.embedding,))
        layers = [self._layer(index, layer, tables) for index, layer in enumerate(spec.layers)]
        final_norm = self._norm(spec.final_norm)
        head = embedding if spec.head is None else reader.stacked((spec.head,))
        return Decoder(
            self._config,
            embedding=embedding,
            layers=layers,
            final_norm=final_norm,
            output_head=self._linear(head, None),
        )

    def _layer(
        self, index: int, spec: LayerSpec, tables: dict[RopeConfig, torch.Tensor]
    ) -> DecoderLayer:
        config = self._config.layers[index]
        return DecoderLayer(
            config=config,
            input_norm=self._norm(spec.input_norm),
            qkv=self._map(spec.qkv),
            q_norm=self._optional_norm(spec.q_norm),
            k_norm=self._optional_norm(spec.k_norm),
            output=self._map(spec.output),
            output_norm=self._optional_norm(spec.output_norm),
            feed_forward_norm=self._norm(spec.feed_forward_norm),
            feed_forward=self._feed_forward(spec.feed_forward),
            feed_forward_output_norm=self._optional_norm(spec.feed_forward_output_norm),
            rope_table=tables[config.rope],
        )

    def _feed_forward(self, spec: MlpSpec | MoeSpec) -> Map:
        if isinstance(spec, MlpSpec):
            return self._mlp(spec)
        assert self._config.moe is not None
        # The router decides discretely: it is never left to a factory that may round.
        router = torch_linear(self._reader.stacked(spec.router.weights), None)
        experts = [self._mlp(expert) for expert in spec.experts]
        return MixtureOfExperts(router, experts, self._config.moe)

    def _mlp(self, spec: MlpSpec) -> GatedMlp:
        return GatedMlp(self._map(spec.gate_up), self._map(spec.down), self._config.activation)

    def _map(self, spec: LinearSpec) -> Linear:
        bias = self._reader.stacked(spec.biases) if spec.biases else None
        return self._linear(self._reader.stacked(spec.weights), bias)

    def _optional_norm(self, spec: TensorSpec | None) -> RmsNorm | None:
        return None if spec is None else self._norm(spec)

    def _norm(self, spec: TensorSpec) -> RmsNorm:
        weight = self._reader.stacked((spec,))
        return RmsNorm(weight, self._config.norm_eps, offset=self._config.norm_offset)
