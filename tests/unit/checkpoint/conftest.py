"""Small model directories and files for tests of the checkpoint package."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "eos_token_id": 2,
}

MakeDirectory = Callable[..., Path]


@pytest.fixture
def make_directory(tmp_path: Path) -> MakeDirectory:
    """Write a directory: config fields over a small Llama's, and further files by name."""

    def make(
        config: Mapping[str, Any] | None = None, **files: str | bytes | Mapping[str, Any]
    ) -> Path:
        directory = tmp_path / "model"
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps({**LLAMA, **(config or {})}))
        for name, content in files.items():
            path = directory / name.replace("__", ".")
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(content if isinstance(content, str) else json.dumps(content))
        return directory

    return make


@pytest.fixture
def safetensors_bytes() -> Callable[..., bytes]:
    """Build a safetensors file of named float32 tensors with given first-axis lengths."""

    def build(**lengths: int) -> bytes:
        header: dict[str, Any] = {}
        offset = 0
        for name, length in lengths.items():
            end = offset + 4 * length
            header[name] = {"dtype": "F32", "shape": [length], "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + bytes(range(256)) * (offset // 256 + 1)

    def trimmed(**lengths: int) -> bytes:
        whole = build(**lengths)
        (length,) = struct.unpack("<Q", whole[:8])
        return whole[: 8 + length + 4 * sum(lengths.values())]

    return trimmed
