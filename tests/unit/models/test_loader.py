"""Loading: everything is checked before data is read, and nothing is read twice or held twice."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.typing import NDArray

from dualpace.checkpoint import (
    Checkpoint,
    GenerationDefaults,
    ModelConfig,
    TensorInfo,
    TokenizerAssets,
    open_checkpoint,
)
from dualpace.core.errors import CheckpointError
from dualpace.models import Linear, load_decoder, torch_linear
from dualpace.testing.gold import tiny_model

CPU = torch.device("cpu")


class EditedCheckpoint:
    """A real checkpoint with some tensors' descriptions changed; it counts what is read."""

    def __init__(self, model: str, **config: Any) -> None:
        self._inner: Checkpoint = open_checkpoint(tiny_model(model))
        self._config = replace(self._inner.config, **config)
        self.infos = dict(self._inner.tensor_infos())
        self.reads: list[str] = []

    @property
    def path(self) -> Path:
        return self._inner.path

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def generation(self) -> GenerationDefaults:
        return self._inner.generation

    @property
    def fingerprint(self) -> bytes:
        return self._inner.fingerprint

    def tokenizer(self) -> TokenizerAssets:
        return self._inner.tokenizer()

    def tensor_infos(self) -> Mapping[str, TensorInfo]:
        return self.infos

    def read(self, name: str) -> NDArray[Any]:
        self.reads.append(name)
        return self._inner.read(name)


def load(checkpoint: Checkpoint) -> None:
    load_decoder(checkpoint, dtype=torch.float32, device=CPU)


def test_a_missing_tensor_is_named_before_anything_is_read() -> None:
    checkpoint = EditedCheckpoint("qwen3")
    del checkpoint.infos["model.layers.2.self_attn.k_norm.weight"]
    with pytest.raises(
        CheckpointError,
        match=r"qwen3.*'model\.layers\.2\.self_attn\.k_norm\.weight' of shape \[48\] is missing",
    ):
        load(checkpoint)
    assert checkpoint.reads == []


def test_a_wrong_shape_is_named_with_both_shapes() -> None:
    checkpoint = EditedCheckpoint("llama3_rope")
    name = "model.layers.1.mlp.down_proj.weight"
    checkpoint.infos[name] = TensorInfo(name, "BF16", (128, 255))
    with pytest.raises(CheckpointError, match=r"down_proj.*\[128, 255\].*\[128, 256\]"):
        load(checkpoint)
    assert checkpoint.reads == []


def test_a_tensor_that_the_config_does_not_announce_is_refused() -> None:
    checkpoint = EditedCheckpoint("qwen2", qkv_bias=False)
    with pytest.raises(CheckpointError, match=r"9 tensors inside the layers.*k_proj\.bias"):
        load(checkpoint)


def test_a_missing_head_is_not_replaced_by_the_embedding() -> None:
    checkpoint = EditedCheckpoint("qwen2", tied_embeddings=False)
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight'.*missing"):
        load(checkpoint)


def test_unused_tensors_outside_the_layers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = EditedCheckpoint("llama3_rope", tied_embeddings=True)
    load(checkpoint)
    assert "1 tensors are not used: lm_head.weight" in caplog.text


def test_frequencies_in_old_checkpoints_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = EditedCheckpoint("llama3_rope")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    checkpoint.infos[name] = TensorInfo(name, "F32", (16,))
    load(checkpoint)
    assert caplog.text == ""


@pytest.mark.parametrize("model", ["mixtral", "gemma3", "phi3"])
def test_every_tensor_is_read_once(model: str) -> None:
    checkpoint = EditedCheckpoint(model)
    load(checkpoint)
    assert sorted(checkpoint.reads) == sorted(checkpoint.infos)


def test_weights_at_odd_addresses_load(tmp_path: Path) -> None:
    source = tiny_model("qwen2")
    directory = tmp_path / "odd"
    directory.mkdir()
    (directory / "config.json").write_bytes((source / "config.json").read_bytes())
    data = (source / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip()
    header += b" " * (1 - len(header) % 2)
    (directory / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + data[8 + length :]
    )
    tokens = torch.tensor([7, 4000])
    odd, even = (
        load_decoder(open_checkpoint(path), dtype=torch.float32, device=CPU).embed(tokens)
        for path in (directory, source)
    )
    assert torch.equal(odd, even)


def test_progress_rises_to_one() -> None:
    shares: list[float] = []
    checkpoint = open_checkpoint(tiny_model("qwen3_moe"))
    load_decoder(checkpoint, dtype=torch.float32, device=CPU, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) == len(checkpoint.tensor_infos())


def test_the_factory_makes_every_large_product() -> None:
    made: list[tuple[tuple[int, ...], bool]] = []

    def factory(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        made.append((tuple(weight.shape), bias is not None))
        return torch_linear(weight, bias)

    checkpoint = open_checkpoint(tiny_model("llama_v5cfg_bias"))
    load_decoder(checkpoint, dtype=torch.float32, device=CPU, linear=factory)
    layer = [((3 * 128, 96), True), ((96, 128), True), ((2 * 160, 96), True), ((96, 160), True)]
    assert sorted(made) == sorted([*layer, *layer, ((49152, 96), False)])


def test_the_router_is_not_left_to_the_factory() -> None:
    shapes: list[tuple[int, ...]] = []

    def factory(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        shapes.append(tuple(weight.shape))
        return torch_linear(weight, bias)

    load_decoder(
        open_checkpoint(tiny_model("mixtral")), dtype=torch.float32, device=CPU, linear=factory
    )
    assert (4, 64) not in shapes
    assert shapes.count((256, 64)) == 2 * 4


def test_max_positions_limits_the_rope_tables() -> None:
    checkpoint = open_checkpoint(tiny_model("gemma3"))
    decoder = load_decoder(checkpoint, dtype=torch.float32, device=CPU, max_positions=40)
    assert decoder.max_positions == 40
    hidden = decoder.embed(torch.tensor([3]))
    decoder.pre_attention(0, hidden, torch.tensor([39]))
    with pytest.raises(IndexError):
        decoder.pre_attention(0, hidden, torch.tensor([40]))
