"""RMS normalisation (arXiv 1910.07467), rounded where transformers rounds."""

import torch
from torch import Tensor


class RmsNorm:
    """Normalises the last axis in fp32 and multiplies by a weight."""

    def __init__(self, weight: Tensor, eps: float, *, offset: bool) -> None:
        """`offset`: Gemma's form, which multiplies by 1 + weight in fp32, before it rounds."""
        self._weight = 1.0 + weight.float() if offset else weight
        self.eps = eps
        self._offset = offset

    @property
    def factor(self) -> Tensor:
        """What normalised values are multiplied by, float32 [n]."""
        return self._weight.float()

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [..., n] normalised, in x's dtype."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (
            (wide * self._weight).to(x.dtype) if self._offset else self._weight * wide.to(x.dtype)
        )
