"""Linear maps on the native kernels, with weights packed once, in a format of their own.

Importing this module needs the kernel library. Sums are fp32 whatever the format.
"""

import torch
from torch import Tensor

from dualpace.kernels import PackedLinear, holds_exactly, narrow_arithmetic

_FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_NARROW = ("bfloat16", "float16")
"""Formats of half the size of float32, in order of preference."""


class NativeLinear:
    """One packed linear map."""

    def __init__(self, packed: PackedLinear, *, num_threads: int) -> None:
        self.packed = packed
        self._num_threads = num_threads

    def __call__(self, x: Tensor) -> Tensor:
        """Map [T, in] to [T, out], in x's dtype."""
        rows = x.float().contiguous()
        out = torch.empty(len(rows), self.packed.outputs)
        self.packed.multiply(
            rows, out, num_threads=self._num_threads, rounding=x.dtype is torch.bfloat16
        )
        return out.to(x.dtype)


class NativeLinearFactory:
    """A `LinearFactory` for CPU weights.

    `weights` is the format to pack in; "auto" takes the narrowest that holds every weight of a map
    exactly, so that it changes no result: weights that were published in 16 bits and are computed
    with in fp32 are then read at half the cost. With bfloat16 weights, "auto" is int16 where the
    processor has no bfloat16 arithmetic but is faster in whole numbers: less is lost than with
    that arithmetic. `int8_group`: inputs that share a scale in int8; 0: all of an output's.
    """

    def __init__(self, num_threads: int, *, weights: str = "auto", int8_group: int = 0) -> None:
        self._num_threads = num_threads
        self._weights = weights
        self._int8_group = int8_group if weights == "int8" else 0

    def __call__(self, weight: Tensor, bias: Tensor | None) -> NativeLinear:
        """Pack weight [out, in] and bias [out]; see LinearFactory."""
        packed = PackedLinear(
            weight,
            None if bias is None else bias.float(),
            format=self._format(weight),
            group=self._int8_group,
            num_threads=self._num_threads,
        )
        return NativeLinear(packed, num_threads=self._num_threads)

    def _format(self, weight: Tensor) -> str:
        wanted = self._weights
        if wanted == "auto":
            if weight.dtype is torch.bfloat16 and narrow_arithmetic() == "int16":
                return "int16"
            fits = (f for f in _NARROW if self._packs(weight, f) and self._holds(weight, f))
            wanted = next(fits, _FORMATS[weight.dtype])
        return wanted if self._packs(weight, wanted) else "float32"

    @staticmethod
    def _packs(weight: Tensor, format_: str) -> bool:
        """Pairs of inputs lie together in bfloat16: their number must be even."""
        return format_ != "bfloat16" or weight.shape[1] % 2 == 0

    def _holds(self, weight: Tensor, format_: str) -> bool:
        return holds_exactly(weight, format=format_, num_threads=self._num_threads)
