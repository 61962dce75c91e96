import json
from pathlib import Path

import pytest

from dualpace.core.errors import CheckpointError
from dualpace.gateway.text.model import SamplingDefaults, ServedModel, served_model
from dualpace.gateway.text.model_loading import load_model
from tests.unit.gateway.conftest import ByteFallbackTokenizer

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 512,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}


@pytest.fixture
def directory(tmp_path: Path, byte_fallback: ByteFallbackTokenizer) -> Path:
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    byte_fallback.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    special = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ eos_token }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def test_the_demo_model_is_named_after_its_file(demo_path: Path) -> None:
    model = load_model(demo_path)
    assert model.names == (demo_path.stem,)
    assert model.tokenizer.id_to_token(model.eos_token_ids[0]) == "<|im_end|>"
    assert model.template is not None
    assert model.defaults == SamplingDefaults()
    assert len(model.fingerprint) == 32


def test_a_directory_gives_its_name_and_its_publishers_defaults(directory: Path) -> None:
    generation = {"eos_token_id": [7, 8], "temperature": 0.6, "top_k": 20}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    model = load_model(directory)
    assert model.names == ("tiny-model",)
    # The tokenizer's own end token stops too.
    assert model.eos_token_ids == (7, 8, 2)
    assert model.defaults == SamplingDefaults(temperature=0.6, top_k=20)
    assert model.template is not None
    assert model.template.render([], max_characters=10) == "</s>"
    assert load_model(directory, ("a", "b")).names == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", -1.0), ("top_p", 0.0), ("min_p", 2.0), ("top_k", -5)]
)
def test_defaults_that_no_sampler_takes_are_refused(name: str, value: float) -> None:
    with pytest.raises(CheckpointError, match=name):
        SamplingDefaults(**{name: value})  # type: ignore[arg-type]


def test_truncation_left_from_training_is_switched_off(
    byte_fallback: ByteFallbackTokenizer,
) -> None:
    tokenizer = byte_fallback.from_str(byte_fallback.to_str())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    model: ServedModel = served_model(("x",), tokenizer)
    text = "quick brown fox, lazy dog"
    assert model.tokenizer.encode(text).ids == byte_fallback.encode(text).ids
