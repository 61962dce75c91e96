"""The seam through which every large matrix product goes, so that engines can supply theirs."""

import functools
from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

Linear = Callable[[Tensor], Tensor]
"""Maps [T, in] to [T, out]."""
LinearFactory = Callable[[Tensor, Tensor | None], Linear]
"""Makes a Linear of weight [out, in] and bias [out] or None. It owns the weight: the caller
keeps no reference."""


def torch_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """Make a linear map on torch's own matrix product."""
    return functools.partial(functional.linear, weight=weight, bias=bias)
