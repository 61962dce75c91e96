"""Models read from GGUF files compute what the same models do from safetensors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType

from dualpace.checkpoint import open_checkpoint
from dualpace.models import Decoder, load_decoder
from dualpace.testing.gguf_writer import write_gguf
from dualpace.testing.gold import TOLERANCE, tiny_model, tiny_prompts

Generate = Any
CPU = torch.device("cpu")


def load(path: Path) -> Decoder:
    return load_decoder(open_checkpoint(path), dtype=torch.float32, device=CPU)


@pytest.mark.parametrize(
    "model", ["llama3_rope", "llama_v5cfg_bias", "qwen2", "qwen3", "phi3", "phi3_longrope"]
)
def test_gguf_models_generate_the_gold(model: str, generate: Generate, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(open_checkpoint(tiny_model(model)), path)
    prompts = tiny_prompts(model)
    results = generate(load(path), [p.token_ids for p in prompts], 24)
    for prompt, result in zip(prompts, results, strict=True):
        assert prompt.first_wrong_step(result.ids) is None, prompt.name
        for step, top in enumerate(prompt.top_logprobs):
            for token, gold in top:
                assert abs(float(result.logprobs[step][token]) - gold) < TOLERANCE


@pytest.mark.parametrize("model", ["llama3_rope", "qwen2", "qwen3", "phi3", "phi3_longrope"])
def test_configs_agree_between_the_formats(model: str, tmp_path: Path) -> None:
    original = open_checkpoint(tiny_model(model)).config
    write_gguf(open_checkpoint(tiny_model(model)), tmp_path / "model.gguf")
    read = open_checkpoint(tmp_path / "model.gguf").config
    differing = {"layers", "weights_dtype"}
    for field in original.__dataclass_fields__:
        if field not in differing:
            assert getattr(read, field) == getattr(original, field), field


def test_yarn_is_read_from_gguf(tmp_path: Path) -> None:
    original = open_checkpoint(tiny_model("qwen2_yarn_window"))
    write_gguf(original, tmp_path / "model.gguf")
    read = open_checkpoint(tmp_path / "model.gguf").config
    assert read.layers[0].rope == original.config.layers[0].rope


@pytest.mark.parametrize("kind", [GGMLQuantizationType.BF16, GGMLQuantizationType.F16])
def test_16_bit_files_load_exactly(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    # The tiny weights are bfloat16 numbers; those of normal size are float16 numbers too.
    checkpoint = open_checkpoint(tiny_model("qwen2"))
    write_gguf(checkpoint, tmp_path / "model.gguf", matrices=kind)
    read = open_checkpoint(tmp_path / "model.gguf")
    assert read.config.weights_dtype == {"BF16": "bfloat16", "F16": "float16"}[kind.name]
    tokens = torch.arange(5)
    with torch.inference_mode():
        expected = load_decoder(checkpoint, dtype=torch.float32, device=CPU).embed(tokens)
        found = load_decoder(read, dtype=torch.float32, device=CPU).embed(tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=2**-16)
