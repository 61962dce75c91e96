"""The GGUF container: header and tensor directory, read in one pass, checked against the size.

Specification: docs/gguf.md of the ggml project. The reader of the `gguf` package keeps an array
object for each string of the vocabulary, which takes seconds; this one takes a tenth. Quantised
data is left to that package.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from dualpace.core.errors import CheckpointError

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
"""Value type number to NumPy type."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """An entry of the tensor directory."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    """Slowest axis first, as torch has it; the file has it the other way round."""
    offset: int
    """From the start of the file."""
    num_bytes: int


class GgufContainer:
    """Header and tensor directory of a file; the data stays mapped."""

    def __init__(self, path: Path) -> None:
        """Parse the header.

        Raises CheckpointError if it is not GGUF, cut off, or of an unknown version or type.
        """
        self.path = path
        try:
            self.data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="c")
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise CheckpointError(f"{path}: cannot be read: {error}") from None
        cursor = _Cursor(self.data, path)
        self.values: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        num_tensors, num_values = _read_preamble(cursor, path)
        for _ in range(num_values):
            key = cursor.string()
            if key in self.values:
                raise CheckpointError(f"{path}: key {key!r} is there twice")
            self.values[key] = cursor.value(cursor.scalar("<u4"))
        entries = [_read_entry(cursor) for _ in range(num_tensors)]
        alignment = self.values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise CheckpointError(
                f"{path}: general.alignment is {alignment!r}; a positive number is needed"
            )
        data_start = -(-cursor.at // alignment) * alignment
        for name, kind, shape, offset in entries:
            if name in self.tensors:
                raise CheckpointError(f"{path}: tensor {name!r} is there twice")
            self.tensors[name] = self._tensor(name, kind, shape, data_start + offset)

    def raw(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """Return a tensor's bytes, a copy-on-write view of the mapped file."""
        return self.data[tensor.offset : tensor.offset + tensor.num_bytes]

    def _tensor(self, name: str, kind: int, shape: tuple[int, ...], offset: int) -> GgufTensor:
        try:
            ggml_type = GGMLQuantizationType(kind)
        except ValueError:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has unknown ggml type {kind}"
            ) from None
        block, block_bytes = GGML_QUANT_SIZES[ggml_type]
        count = math.prod(shape)
        if shape and shape[-1] % block:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has rows of {shape[-1]}, not a multiple of "
                f"{ggml_type.name}'s {block}"
            )
        num_bytes = count // block * block_bytes
        if offset + num_bytes > len(self.data):
            raise CheckpointError(
                f"{self.path}: cut off: {len(self.data)} bytes, tensor {name!r} ends at "
                f"{offset + num_bytes}"
            )
        return GgufTensor(name, ggml_type, shape, offset, num_bytes)


def _read_preamble(cursor: "_Cursor", path: Path) -> tuple[int, int]:
    """Return the number of tensors and of key-value pairs."""
    if bytes(cursor.data[:4]) != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file")
    cursor.at = 4
    version = cursor.scalar("<u4")
    if version not in _VERSIONS:
        hint = " (a big-endian file?)" if version & 0xFFFF == 0 else ""
        raise CheckpointError(f"{path}: GGUF version {version}{hint}; supported are 2 and 3")
    return cursor.scalar("<u8"), cursor.scalar("<u8")


def _read_entry(cursor: "_Cursor") -> tuple[str, int, tuple[int, ...], int]:
    name = cursor.string()
    num_dims = cursor.scalar("<u4")
    if num_dims > 8:
        raise CheckpointError(
            f"{cursor.path}: tensor {name!r} has {num_dims} dimensions: the file is damaged"
        )
    dims = tuple(cursor.scalar("<u8") for _ in range(num_dims))
    return name, cursor.scalar("<u4"), dims[::-1], cursor.scalar("<u8")


class _Cursor:
    """Reads values one after the other.

    Every length is checked against what is left of the file.
    """

    def __init__(self, data: NDArray[np.uint8], path: Path) -> None:
        self.data = data.data
        self.path = path
        self.at = 0

    def scalar(self, kind: str) -> Any:
        """Read one number or boolean."""
        return np.frombuffer(self._take(np.dtype(kind).itemsize), dtype=kind)[0].item()

    def string(self) -> str:
        """Read a string of UTF-8."""
        (length,) = struct.unpack("<Q", self._take(8))
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(
                f"{self.path}: a string before byte {self.at} is not UTF-8"
            ) from None

    def value(self, kind: int) -> Any:
        """Read a value of a GGUF type: a number, a boolean, a string or a list."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item_kind, count = self.scalar("<u4"), self.scalar("<u8")
            if item_kind in _SCALARS:
                dtype = np.dtype(_SCALARS[item_kind])
                return np.frombuffer(self._take(count * dtype.itemsize), dtype=dtype).tolist()
            if item_kind == _ARRAY:
                raise CheckpointError(f"{self.path}: an array of arrays at byte {self.at}")
            return [self.value(item_kind) for _ in range(count)]
        if kind not in _SCALARS:
            raise CheckpointError(f"{self.path}: unknown value type {kind} at byte {self.at}")
        return self.scalar(_SCALARS[kind])

    def _take(self, count: int) -> memoryview:
        end = self.at + count
        if end > len(self.data):
            raise CheckpointError(
                f"{self.path}: cut off or damaged: {len(self.data)} bytes, {end} are needed"
            )
        part = self.data[self.at : end]
        self.at = end
        return part
