"""Draws from unnormalised weights by the inverse of their cumulative sum."""

import torch
from torch import Tensor


def draw(weights: Tensor, noise: Tensor) -> Tensor:
    """Return for each row the first index at which the cumulative weight exceeds noise x mass.

    weights [R, N] float64, not negative, each row's mass positive; noise [R] in [0, 1). int64 [R].
    """
    # A prefix sum adds up in the same order whatever the number of rows; a plain sum need not.
    cumulative = weights.cumsum(dim=-1)
    target = noise[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, target, right=True)[:, 0]
    # The product may round up to the whole mass: then the last index with any weight is meant.
    mass_reached = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())[:, 0]
    return torch.minimum(drawn, mass_reached)
