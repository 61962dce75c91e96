"""Weights of a directory, whole, in shards, cut off and contradictory."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dualpace.checkpoint.safetensors_files import SafetensorsFiles
from dualpace.core.errors import CheckpointError
from dualpace.testing.gold import tiny_model

Build = Callable[..., bytes]


def index_of(**files: str) -> str:
    return json.dumps({"weight_map": files})


def test_tensors_are_those_of_the_file(tmp_path: Path, safetensors_bytes: Build) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(a=3, b=5))
    files = SafetensorsFiles(tmp_path)
    assert {name: info.shape for name, info in files.infos().items()} == {"a": (3,), "b": (5,)}
    expected = np.frombuffer(bytes(range(32)), "<f4")
    np.testing.assert_array_equal(files.read("a"), expected[:3])
    np.testing.assert_array_equal(files.read("b"), expected[3:])


def test_bfloat16_comes_as_bits() -> None:
    files = SafetensorsFiles(tiny_model("qwen2"))
    values = files.read("model.norm.weight")
    assert values.dtype == np.uint16
    assert values.shape == (96,)


def test_shards_are_joined_by_their_index(tmp_path: Path, safetensors_bytes: Build) -> None:
    (tmp_path / "one.safetensors").write_bytes(safetensors_bytes(a=3))
    (tmp_path / "two.safetensors").write_bytes(safetensors_bytes(b=4, c=1))
    # Left over from another save: not in the index, so not part of the model.
    (tmp_path / "old.safetensors").write_bytes(safetensors_bytes(a=9))
    index = index_of(a="one.safetensors", b="two.safetensors", c="two.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    files = SafetensorsFiles(tmp_path)
    assert {name: info.shape for name, info in files.infos().items()} == {
        "a": (3,),
        "b": (4,),
        "c": (1,),
    }
    assert len(files.read("b")) == 4


def test_a_single_file_of_another_name_is_taken(tmp_path: Path, safetensors_bytes: Build) -> None:
    (tmp_path / "weights.safetensors").write_bytes(safetensors_bytes(a=3))
    assert list(SafetensorsFiles(tmp_path).infos()) == ["a"]


@pytest.mark.parametrize("kept", [0, 4, 7, 8, 30, 70, -1, -4, -12])
def test_a_cut_off_file_is_found_at_opening(
    kept: int, tmp_path: Path, safetensors_bytes: Build
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(a=3, b=5)[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cut off"):
        SafetensorsFiles(tmp_path)


def test_surplus_bytes_are_found(tmp_path: Path, safetensors_bytes: Build) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(a=3) + b"x")
    with pytest.raises(CheckpointError, match="damaged"):
        SafetensorsFiles(tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"not json", "not a safetensors file"),
        (b"[]", "not a safetensors file"),
        (b'{"a": {"dtype": "F32", "shape": [2]}}', "entry of tensor 'a' is malformed"),
        (b'{"a": 3}', "entry of tensor 'a' is malformed"),
        (b'{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}', "contradicts itself"),
        (b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}', "contradicts itself"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}', "contradicts itself"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}', "contradicts itself"),
    ],
)
def test_a_damaged_header_is_named(header: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFiles(tmp_path)


def test_something_else_is_no_safetensors_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"PK\x03\x04 a zip file, most likely")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        SafetensorsFiles(tmp_path)


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(CheckpointError, match=r"weights\.safetensors: cannot be read"):
        SafetensorsFiles(tmp_path)


def test_pickles_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match=r"pickles only.*Convert them to safetensors"):
        SafetensorsFiles(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no model\.safetensors and no"):
        SafetensorsFiles(tmp_path)


def test_several_files_without_an_index_are_ambiguous(
    tmp_path: Path, safetensors_bytes: Build
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_bytes(a=1))
    with pytest.raises(CheckpointError, match=r"2 safetensors files \(one\.safetensors"):
        SafetensorsFiles(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ('{"weight_map": []}', "'weight_map' is"),
        ("{}", "'weight_map' is None"),
        ("{", "not valid JSON"),
        (index_of(a="two.safetensors"), "names two.safetensors, which is not there"),
        (index_of(a="../one.safetensors"), "not a plain file name"),
        (index_of(a="one.safetensors", b="one.safetensors"), "tensor 'b'.*is missing"),
    ],
)
def test_a_wrong_index_is_named(
    index: str, message: str, tmp_path: Path, safetensors_bytes: Build
) -> None:
    (tmp_path / "one.safetensors").write_bytes(safetensors_bytes(a=1))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFiles(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path, safetensors_bytes: Build) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_bytes(a=1, **{name: 1}))
    index = index_of(one="one.safetensors", two="two.safetensors", a="one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"tensor 'a' is also in .*one\.safetensors"):
        SafetensorsFiles(tmp_path)


def test_types_that_cannot_be_computed_in_are_named(tmp_path: Path) -> None:
    header = b'{"a": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}'
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    files = SafetensorsFiles(tmp_path)
    assert files.infos()["a"].dtype == "F8_E4M3"
    with pytest.raises(CheckpointError, match=r"stored as F8_E4M3; supported are F32, F16, BF16"):
        files.read("a")
