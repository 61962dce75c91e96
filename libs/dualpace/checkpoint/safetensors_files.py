"""Tensors of a Hugging Face directory: one safetensors file, or shards with an index.

Headers are checked at opening.

Format: u64 little-endian header length, JSON header (name -> dtype, shape, byte range), data. The
ranges and the file's size must agree, so that a cut download is found before any weight is read.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualpace.checkpoint.checkpoint import TensorInfo
from dualpace.checkpoint.fields import describe, load_json_object
from dualpace.core.errors import CheckpointError

_MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_NUMPY: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class _Stored:
    info: TensorInfo
    path: Path
    offset: int
    num_bytes: int


class SafetensorsFiles:
    """Every tensor of a directory by name; files are mapped when first read from."""

    def __init__(self, directory: Path) -> None:
        """Read headers.

        Raises CheckpointError if files are absent, ambiguous, cut off or contradict each other.
        """
        self._stored: dict[str, _Stored] = {}
        self._maps: dict[Path, NDArray[np.uint8]] = {}
        self.paths = _weight_files(directory)
        for path in self.paths:
            for stored in _read_header(path):
                name = stored.info.name
                if name in self._stored:
                    raise CheckpointError(
                        f"{path}: tensor {name!r} is also in {self._stored[name].path}"
                    )
                self._stored[name] = stored
        _check_index(directory, self._stored)

    def infos(self) -> Mapping[str, TensorInfo]:
        """Return what is stored, by name."""
        return {name: stored.info for name, stored in self._stored.items()}

    def read(self, name: str) -> NDArray[Any]:
        """Return values as `Checkpoint.read` does: a copy-on-write view of the mapped file."""
        stored = self._stored[name]
        if stored.info.dtype not in _NUMPY:
            raise CheckpointError(
                f"{stored.path}: tensor {name!r} is stored as {stored.info.dtype}; supported are "
                f"{', '.join(_NUMPY)}"
            )
        values = self.raw(name).view(_NUMPY[stored.info.dtype])
        return values.reshape(stored.info.shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's bytes."""
        stored = self._stored[name]
        if stored.path not in self._maps:
            self._maps[stored.path] = np.memmap(stored.path, dtype=np.uint8, mode="c")
        return self._maps[stored.path][stored.offset : stored.offset + stored.num_bytes]


def _weight_files(directory: Path) -> list[Path]:
    """Return the weights' files: those of the index, else model.safetensors, else the only one."""
    if (directory / _INDEX).is_file():
        shards = sorted(set(_weight_map(directory).values()))
        for shard in shards:
            if not (directory / shard).is_file():
                raise CheckpointError(f"{directory / _INDEX}: names {shard}, which is not there")
        return [directory / shard for shard in shards]
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    found = sorted(directory.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        names = ", ".join(path.name for path in found[:4])
        raise CheckpointError(
            f"{directory}: {len(found)} safetensors files ({names}, ...) but no {_INDEX}"
        )
    if list(directory.glob("pytorch_model*.bin")) or list(directory.glob("*.pth")):
        raise CheckpointError(
            f"{directory}: holds weights as pickles only (pytorch_model.bin), which can run code "
            "when loaded and are not read. Convert them to safetensors, or use a copy of the model "
            "that has them"
        )
    raise CheckpointError(f"{directory}: no model.safetensors and no {_INDEX}")


def _weight_map(directory: Path) -> dict[str, str]:
    weight_map = load_json_object(directory / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(
            f"{directory / _INDEX}: field 'weight_map' is {describe(weight_map)}; an object of "
            "file names is needed"
        )
    for shard in weight_map.values():
        if Path(shard).name != shard:
            raise CheckpointError(f"{directory / _INDEX}: {shard!r} is not a plain file name")
    return weight_map


def _check_index(directory: Path, stored: Mapping[str, _Stored]) -> None:
    if (directory / _INDEX).is_file():
        for name, shard in _weight_map(directory).items():
            if name not in stored or stored[name].path.name != shard:
                raise CheckpointError(
                    f"{directory / shard}: tensor {name!r}, which the index puts here, is missing"
                )


def _read_header(path: Path) -> list[_Stored]:
    try:
        size, text = _header_text(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    length = len(text)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a safetensors file: {error}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: not a safetensors file: the header is {describe(header)}")
    header.pop("__metadata__", None)
    stored = [_entry(path, 8 + length, name, entry) for name, entry in header.items()]
    needed = max((s.offset + s.num_bytes for s in stored), default=8 + length)
    if needed != size:
        state = "cut off" if needed > size else "damaged"
        raise CheckpointError(f"{path}: {state}: {size} bytes, the header says {needed}")
    return stored


def _header_text(path: Path) -> tuple[int, bytes]:
    """Return the file's size and its header. Raises OSError, CheckpointError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise CheckpointError(f"{path}: cut off: {size} bytes are no safetensors file")
        (length,) = struct.unpack("<Q", prefix)
        if length > _MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: not a safetensors file (header length {length})")
        if 8 + length > size:
            raise CheckpointError(
                f"{path}: cut off: {size} bytes, the header alone needs {8 + length}"
            )
        return size, file.read(length)


def _entry(path: Path, data_start: int, name: str, entry: object) -> _Stored:
    try:
        fields: dict[str, Any] = dict(entry)  # type: ignore[call-overload]
        dtype, shape, (begin, end) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
        count = math.prod(shape)
        valid = 0 <= begin <= end and all(isinstance(n, int) and n >= 0 for n in shape)
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: header entry of tensor {name!r} is malformed") from None
    if dtype in _NUMPY and end - begin != count * np.dtype(_NUMPY[dtype]).itemsize:
        valid = False
    if not valid:
        raise CheckpointError(f"{path}: header entry of tensor {name!r} contradicts itself")
    return _Stored(TensorInfo(name, dtype, shape), path, data_start + begin, end - begin)
