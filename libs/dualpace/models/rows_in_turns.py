"""When a host step goes through the layers in two groups of rows that take turns.

While one is multiplied, the other's keys and values are read; each reads all weights. That pays
where multiplying takes far longer than reading the weights twice, which is measured here, and where
as much is read of keys and values as of weights. Importing this module needs the kernel library.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dualpace.core.timing import least_seconds
from dualpace.kernels import PackedLinear, huge_pages, multiply_adds, narrow_arithmetic, stream_read

_READ_BYTES = 1 << 28
_STEPS = 1_000_000
_SHARE = 1 / 3
"""Of the time for multiplying that reading all weights twice may take."""
_LEAST_ROWS = 32
"""Two groups of so few rows multiply more slowly than the whole."""


def least_rows_in_turns(packed: PackedLinear, *, rounding: bool, num_threads: int) -> int:
    """Return from how many rows on two groups are worth it.

    `packed`: one of the model's maps, `rounding`: how it is multiplied by. Reading B bytes of each
    of W weights twice, at r bytes/s, takes 2BW / r; the multiply-adds of R rows, two operations
    each, at p operations/s, 2WR / p.
    """
    arithmetic = _arithmetic(packed.format, rounding=rounding)
    words = torch.frombuffer(huge_pages(_READ_BYTES), dtype=torch.int64)
    words.fill_(1)
    operations = multiply_adds(_STEPS, num_threads=num_threads, arithmetic=arithmetic)
    read_s = least_seconds(lambda: stream_read(words, num_threads=num_threads))
    multiply_s = least_seconds(
        lambda: multiply_adds(_STEPS, num_threads=num_threads, arithmetic=arithmetic)
    )
    bytes_of_weight = packed.num_bytes / (packed.outputs * packed.inputs)
    return rows_that_hide_weights(
        bytes_of_weight, operations_s=operations / multiply_s, bytes_s=_READ_BYTES / read_s
    )


def rows_that_hide_weights(bytes_of_weight: float, *, operations_s: float, bytes_s: float) -> int:
    """Return from how many rows on reading all weights twice hides behind multiplying."""
    rows = bytes_of_weight * operations_s / (_SHARE * bytes_s)
    return max(_LEAST_ROWS, math.ceil(rows))


class KeysInTurns:
    """Whether as much is read of keys and values as of the layers' weights."""

    def __init__(self, weight_bytes: int, key_bytes: int, windows: Sequence[int | None]) -> None:
        """`weight_bytes`: of all layers; `key_bytes`: of a key and its value in one layer.

        `windows`: each layer's sliding window, or None.
        """
        self._least = weight_bytes / key_bytes
        self._layers = tuple(Counter(windows).items())

    def enough(self, lengths: npt.NDArray[np.int32]) -> bool:
        """Tell it of sequences [batch] of so many keys, over all layers."""
        keys = 0
        for window, layers in self._layers:
            attended = lengths if window is None else np.minimum(lengths, window)
            keys += layers * int(attended.sum(dtype=np.int64))
        return keys >= self._least


def _arithmetic(weights: str, *, rounding: bool) -> str:
    if weights == "int16":
        return "int16"
    return narrow_arithmetic() if rounding and weights in ("bfloat16", "int8") else "float32"
