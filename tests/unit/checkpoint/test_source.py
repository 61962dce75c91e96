"""From what a user names to an opened checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest

from dualpace.checkpoint import fetch_demo_model, open_checkpoint, resolve_model
from dualpace.checkpoint.gguf_checkpoint import GgufCheckpoint
from dualpace.checkpoint.huggingface import HuggingFaceCheckpoint
from dualpace.core.errors import CheckpointError
from dualpace.testing.gold import tiny_model

MakeDirectory = Any
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def quiet(_text: str) -> None:
    pass


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hub at which nobody listens, and an empty cache."""
    from huggingface_hub import constants  # noqa: PLC0415

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def test_demo_is_the_demo_model() -> None:
    assert resolve_model("demo", progress=quiet) == fetch_demo_model()


def test_paths_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "a.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    # It looks like a hub id, but it is here.
    assert resolve_model("org/model", progress=quiet) == Path("org/model")
    assert resolve_model(str(tmp_path / "a.gguf"), progress=quiet) == tmp_path / "a.gguf"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/org", progress=quiet) == tmp_path / "org"


@pytest.mark.parametrize("source", ["nowhere", "/no/such/place", "a/b/c", "org/x.gguf", "x y/z"])
def test_what_is_neither_path_nor_id_is_refused(source: str) -> None:
    with pytest.raises(CheckpointError, match=r"does not exist, and it is not a hub id") as caught:
        resolve_model(source, progress=quiet)
    assert str(Path(source).absolute()) in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "empty"),
        ("~no-such-user/x", "not a usable path"),
        ("x" * 300, "not a usable path"),
        ("/a/" + "b/" * 3000, "not a usable path"),
    ],
)
def test_what_no_path_can_be_is_said_so(source: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        resolve_model(source, progress=quiet)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"a file that is not \.gguf"):
        resolve_model(str(path), progress=quiet)


@pytest.mark.parametrize("source", ["org/model", "org/model@main"])
def test_an_unreachable_hub_is_said_to_be_so(source: str, no_hub: None) -> None:
    said: list[str] = []
    with pytest.raises(CheckpointError, match=rf"{source}: .*the hub cannot be reached"):
        resolve_model(source, progress=said.append)
    assert said == [f"looking up {source} on the Hugging Face hub"]


def cached_repository(hub: Path, **files: str) -> Path:
    """Put a model into the hub's cache, as its client lays it out."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = hub / "models--org--model"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for name, text in files.items():
        (snapshot / name.replace("__", ".")).write_text(text)
    return snapshot


def test_a_cached_hub_model_serves_without_the_hub(no_hub: None, tmp_path: Path) -> None:
    snapshot = cached_repository(tmp_path / "hub", config__json=json.dumps(LLAMA))
    path = resolve_model("org/model", progress=quiet)
    assert path == snapshot
    assert open_checkpoint(path).config.num_layers == 2


def test_a_repository_without_a_config_is_refused(no_hub: None, tmp_path: Path) -> None:
    cached_repository(tmp_path / "hub", README__md="GGUF files only")
    with pytest.raises(CheckpointError, match=r"no config\.json.*download the wanted \.gguf file"):
        resolve_model("org/model", progress=quiet)


def test_directories_and_files_are_told_apart(make_directory: MakeDirectory) -> None:
    assert isinstance(open_checkpoint(make_directory()), HuggingFaceCheckpoint)
    assert isinstance(open_checkpoint(fetch_demo_model()), GgufCheckpoint)
    assert isinstance(open_checkpoint(str(tiny_model("qwen2"))), HuggingFaceCheckpoint)


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "only.gguf").symlink_to(fetch_demo_model())
    assert open_checkpoint(tmp_path).path == tmp_path / "only.gguf"
    (tmp_path / "second.gguf").symlink_to(fetch_demo_model())
    with pytest.raises(CheckpointError, match=r"2 GGUF files \(only\.gguf, second\.gguf\)"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b"{", r"config\.json: not valid JSON"),
        (b"[1]", r"config\.json: a JSON object is needed, found \[1\] \(a list\)"),
        (b"\xff\xfe", r"config\.json: not UTF-8 text"),
        (b"[" * 100_000, r"config\.json: not valid JSON"),
    ],
)
def test_an_unreadable_config_is_named(config: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(config)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_empty_and_missing_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither config\.json nor a GGUF file"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no such file or directory"):
        open_checkpoint(tmp_path / "absent")


def test_a_config_serves_without_weights(make_directory: MakeDirectory) -> None:
    # A gateway needs no weights, and may have none.
    checkpoint = open_checkpoint(make_directory())
    assert checkpoint.config.num_layers == 2
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        checkpoint.tensor_infos()
