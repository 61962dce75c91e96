"""GGUF files: the container against the reference writer and reader, values, and damage."""

import contextlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dualpace.checkpoint import fetch_demo_model, open_checkpoint
from dualpace.checkpoint.gguf_checkpoint import GgufCheckpoint
from dualpace.checkpoint.gguf_container import GgufContainer
from dualpace.core.errors import CheckpointError
from dualpace.testing.gguf_writer import write_gguf
from dualpace.testing.gold import tiny_model

VALUES: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
TENSORS: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (48, 32),
    "output_norm.weight": (32,),
    "blk.0.attn_norm.weight": (32,),
    "blk.0.attn_q.weight": (32, 32),
    "blk.0.attn_k.weight": (16, 32),
    "blk.0.attn_v.weight": (16, 32),
    "blk.0.attn_output.weight": (32, 32),
    "blk.0.ffn_norm.weight": (32,),
    "blk.0.ffn_gate.weight": (64, 32),
    "blk.0.ffn_up.weight": (64, 32),
    "blk.0.ffn_down.weight": (32, 64),
}


def write(
    path: Path,
    values: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[Any]] | None = None,
) -> Path:
    """Write a small llama file; a value of None drops the key, tensors are given by GGUF name."""
    merged = {**VALUES, **(values or {})}
    writer = gguf.GGUFWriter(path, merged.pop("general.architecture"))
    for key, value in merged.items():
        match value:
            case None:
                continue
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    generator = np.random.default_rng(1)
    for name, shape in TENSORS.items():
        writer.add_tensor(name, generator.standard_normal(shape, dtype=np.float32))
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_container_reads_what_the_reference_reader_reads() -> None:
    path = fetch_demo_model()
    ours, reference = GgufContainer(path), gguf.GGUFReader(path)
    fields = {k: f for k, f in reference.fields.items() if not k.startswith("GGUF.")}
    assert list(ours.values) == list(fields)
    for key, field in fields.items():
        assert ours.values[key] == field.contents(), key
    assert list(ours.tensors) == [t.name for t in reference.tensors]
    for expected in reference.tensors:
        tensor = ours.tensors[expected.name]
        assert tensor.kind == expected.tensor_type
        assert tensor.shape == tuple(reversed(expected.shape.tolist()))
        assert ours.raw(tensor).tobytes() == expected.data.tobytes()


SCALARS = {
    "add_uint8": st.integers(0, 2**8 - 1),
    "add_int8": st.integers(-(2**7), 2**7 - 1),
    "add_uint16": st.integers(0, 2**16 - 1),
    "add_int16": st.integers(-(2**15), 2**15 - 1),
    "add_uint32": st.integers(0, 2**32 - 1),
    "add_int32": st.integers(-(2**31), 2**31 - 1),
    "add_uint64": st.integers(0, 2**64 - 1),
    "add_int64": st.integers(-(2**63), 2**63 - 1),
    "add_float32": st.floats(width=32, allow_nan=False),
    "add_float64": st.floats(allow_nan=False),
    "add_bool": st.booleans(),
    "add_string": st.text(min_size=1),
    "add_array": st.one_of(
        st.lists(st.text(), min_size=1),
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1),
        st.lists(st.booleans(), min_size=1),
    ),
}
ENTRIES = st.sampled_from(sorted(SCALARS)).flatmap(
    lambda method: st.tuples(st.just(method), SCALARS[method])
)


@given(st.lists(ENTRIES, max_size=8))
@settings(max_examples=60, deadline=None)
def test_every_type_of_value_comes_back(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "values.gguf"
    writer = gguf.GGUFWriter(path, "test")
    for number, (method, value) in enumerate(entries):
        getattr(writer, method)(f"key.{number}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = GgufContainer(path).values
    for number, (_, value) in enumerate(entries):
        assert found[f"key.{number}"] == value


# The types that the library can also quantise to; the other k-quants follow below from raw bytes.
QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16", "F32"]
RAW_BLOCKS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ3_S"]


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_values_are_the_librarys(kind: str, tmp_path: Path) -> None:
    ggml_type = GGMLQuantizationType[kind]
    values = np.random.default_rng(2).standard_normal((3, 64), dtype=np.float32)
    stored = gguf.quantize(values, ggml_type)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("some.weight", stored, raw_dtype=ggml_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    container = GgufContainer(tmp_path / "model.gguf")
    tensor = container.tensors["some.weight"]
    assert tensor.shape == (3, 64)
    assert container.raw(tensor).tobytes() == stored.tobytes()


@pytest.mark.parametrize("kind", RAW_BLOCKS)
def test_all_dequantisable_types_are_read(kind: str, tmp_path: Path) -> None:
    ggml_type = GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
    raw = np.random.default_rng(3).integers(0, 60, (48, 256 // block * block_bytes), dtype=np.uint8)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (VALUES | {"llama.embedding_length": 256}).items():
        if isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
    writer.add_tensor("token_embd.weight", raw, raw_dtype=ggml_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = GgufCheckpoint(path)
    info = checkpoint.tensor_infos()["model.embed_tokens.weight"]
    assert (info.dtype, info.shape) == (kind, (48, 256))
    found = checkpoint.read("model.embed_tokens.weight")
    np.testing.assert_array_equal(found, dequantize(raw, ggml_type))
    assert found.dtype == np.float32


def test_llama_rows_are_unpermuted_and_others_left_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    checkpoint, container = GgufCheckpoint(path), GgufContainer(path)

    def stored(name: str) -> Any:
        tensor = container.tensors[name]
        return container.raw(tensor).view(np.float32).reshape(tensor.shape)

    # Two query heads of 16: row 2 i of a head is its i-th, row 2 i + 1 its (8 + i)-th.
    rows = [head * 16 + 2 * i + half for head in range(2) for half in range(2) for i in range(8)]
    prefix = "model.layers.0.self_attn."
    np.testing.assert_array_equal(
        checkpoint.read(prefix + "q_proj.weight"), stored("blk.0.attn_q.weight")[rows]
    )
    np.testing.assert_array_equal(
        checkpoint.read(prefix + "k_proj.weight"), stored("blk.0.attn_k.weight")[rows[:16]]
    )
    np.testing.assert_array_equal(
        checkpoint.read(prefix + "v_proj.weight"), stored("blk.0.attn_v.weight")
    )


def test_the_demo_is_described(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(fetch_demo_model())
    config = checkpoint.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (30, 9, 3)
    assert (config.hidden_size, config.head_dim, config.intermediate_size) == (576, 64, 1536)
    assert (config.vocab_size, config.context_length) == (49152, 8192)
    assert config.norm_eps == 1e-5
    assert config.layers[0].rope.theta == 100000.0
    assert config.tied_embeddings
    assert config.weights_dtype == "float32"
    assert checkpoint.generation.eos_token_ids == (2,)
    assert len(checkpoint.tensor_infos()) == 272


def test_end_tokens_of_turns_count_too(tmp_path: Path) -> None:
    ids = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 9}
    generation = open_checkpoint(write(tmp_path / "model.gguf", ids)).generation
    assert generation.eos_token_ids == (1, 9)


@pytest.mark.parametrize("kept", [0, 3, 10, 24, 40, 300, -4000, -1])
def test_a_cut_off_file_is_found_at_opening(kept: int, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    with pytest.raises(CheckpointError, match=r"model\.gguf: (cut off|cannot be read|not a GGUF)"):
        open_checkpoint(path)


@given(st.integers(0, 900), st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_a_damaged_header_never_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    path = write(tmp_path_factory.mktemp("gguf") / "model.gguf")
    data = bytearray(path.read_bytes())
    data[at] = byte
    path.write_bytes(data)
    with contextlib.suppress(CheckpointError):
        assert open_checkpoint(path).config.num_layers >= 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGML" + bytes(100), "not a GGUF file"),
        (b"\x00" * 64, "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "GGUF version 1; supported are 2 and 3"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), r"version 50331648 \(a big-endian file\?\)"),
    ],
)
def test_other_files_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"general.architecture": "falcon"}, r"'falcon' is not supported; supported are llama, "),
        ({"llama.expert_count": 8}, "mixtures of experts are not read"),
        ({"llama.embedding_length": None}, r"'llama\.embedding_length' is missing"),
        ({"llama.block_count": 0}, r"'llama\.block_count' is 0"),
        ({"llama.attention.head_count": "two"}, r"'llama\.attention\.head_count' is 'two'"),
        ({"llama.attention.head_count_kv": 3}, "2 attention heads cannot share 3 KV heads"),
        ({"llama.attention.head_count_kv": [1, 2]}, r"head_count_kv' is \[1, 2\]"),
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling 'longrope' is not supported"),
        ({"llama.rope.dimension_count": 5}, r"dimension_count' is 5 .*an even number"),
        (
            {"llama.attention.key_length": 8, "llama.attention.value_length": 4},
            "value_length' is 4",
        ),
        ({"general.alignment": "x"}, "general.alignment is 'x'"),
    ],
)
def test_headers_that_cannot_be_served_are_named(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "model.gguf", values)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_equal_numbers_for_each_layer_are_one_number(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", {"llama.attention.head_count_kv": [1, 1]})
    assert open_checkpoint(path).config.num_kv_heads == 1


def test_rope_divisors_of_a_wrong_length_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", tensors={"rope_freqs.weight": np.ones(5, np.float32)})
    with pytest.raises(CheckpointError, match=r"'rope_freqs\.weight' is F32 \[5\]; F32 \[8\]"):
        open_checkpoint(path)


def test_linear_scaling_and_windows_are_read(tmp_path: Path) -> None:
    values = {
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 4.0,
        "llama.attention.sliding_window": 24,
    }
    (layer,) = open_checkpoint(write(tmp_path / "model.gguf", values)).config.layers
    assert layer.window == 24
    assert getattr(layer.rope.scaling, "factor", None) == 4.0


def test_unknown_tensors_keep_their_place(tmp_path: Path) -> None:
    path = write(
        tmp_path / "model.gguf", tensors={"blk.0.attn_sinks.weight": np.ones(2, np.float32)}
    )
    assert "model.layers.0.attn_sinks.weight" in open_checkpoint(path).tensor_infos()


def test_parts_of_a_split_file_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model-00001-of-00002.gguf")
    with pytest.raises(CheckpointError, match="split GGUF files are not read"):
        open_checkpoint(path)


def test_opening_parses_the_header_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Path] = []
    original = GgufContainer.__init__

    def counting(self: GgufContainer, path: Path) -> None:
        parsed.append(path)
        original(self, path)

    monkeypatch.setattr(GgufContainer, "__init__", counting)
    checkpoint = open_checkpoint(fetch_demo_model())
    checkpoint.tokenizer()
    assert len(checkpoint.fingerprint) == 32
    checkpoint.read("model.norm.weight")
    assert len(parsed) == 1


def test_a_written_model_reads_back_equal(tmp_path: Path) -> None:
    original = open_checkpoint(tiny_model("llama3_rope"))
    write_gguf(original, tmp_path / "model.gguf", matrices=GGMLQuantizationType.BF16)
    read = open_checkpoint(tmp_path / "model.gguf")
    assert read.tensor_infos().keys() == original.tensor_infos().keys()
    for name in ("model.layers.2.self_attn.k_proj.weight", "lm_head.weight"):
        np.testing.assert_array_equal(read.read(name), original.read(name))
