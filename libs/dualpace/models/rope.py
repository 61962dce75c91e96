"""Rotary position embedding (arXiv 2104.09864): tables of cosine and sine, and their application.

Halves convention: dimension i of a head is rotated with dimension i + rotary_dim / 2. Tables are
computed in fp32 and then rounded to the model's dtype, as transformers does.
"""

import math

import torch
from torch import Tensor

from dualpace.checkpoint import (
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    YarnScaling,
)


def rope_table(
    rope: RopeConfig, num_positions: int, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return [num_positions, rotary_dim]: each row rotary_dim / 2 cosines, then as many sines."""
    frequencies = inverse_frequencies(rope)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    factor = attention_factor(rope)
    table = torch.cat((angles.cos() * factor, angles.sin() * factor), dim=-1)
    return table.to(dtype=dtype, device=device)


def rotate(heads: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate heads [T, n, head_dim] by their positions' table rows, cos_sin [T, rotary_dim]."""
    rotary_dim = cos_sin.shape[-1]
    half = rotary_dim // 2
    cos, sin = cos_sin[:, None].chunk(2, dim=-1)
    first, second, rest = torch.split(heads, [half, half, heads.shape[-1] - rotary_dim], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def attention_factor(rope: RopeConfig) -> float:
    """Return what cosine and sine are multiplied by."""
    match rope.scaling:
        case YarnScaling(attention_factor=factor) | FrequencyFactors(attention_factor=factor):
            return factor
        case _:
            return 1.0


def inverse_frequencies(rope: RopeConfig) -> Tensor:
    """Return radians per position for each rotated pair, float32 [rotary_dim / 2]."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    periods = rope.theta**exponents
    plain = 1.0 / periods
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor=factor):
            return plain / factor
        case FrequencyFactors(factors=factors):
            return 1.0 / (torch.tensor(factors, dtype=torch.float32) * periods)
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)
        case YarnScaling() as scaling:
            return _yarn(periods, rope, scaling)


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Frequencies of Llama 3.1, after the formula in Meta's reference model code."""
    wavelengths = 2 * math.pi / plain
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (scaling.original_context / wavelengths - low) / (high - low)
    between = (1 - smooth) * plain / scaling.factor + smooth * plain
    scaled = torch.where(
        wavelengths > scaling.original_context / low, plain / scaling.factor, between
    )
    return torch.where(wavelengths < scaling.original_context / high, plain, scaled)


def _yarn(periods: Tensor, rope: RopeConfig, scaling: YarnScaling) -> Tensor:
    """Frequencies of YaRN, arXiv 2309.00071 section 3.2: "NTK-by-parts"."""

    def dimension_at(rotations: float) -> float:
        turns = scaling.original_context / (rotations * 2 * math.pi)
        return rope.rotary_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension_at(scaling.beta_fast), dimension_at(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001
    pairs = torch.arange(rope.rotary_dim // 2, dtype=torch.float32)
    interpolated_share = ((pairs - low) / (high - low)).clamp(0, 1)
    kept_share = 1 - interpolated_share
    return 1.0 / (scaling.factor * periods) * (1 - kept_share) + 1.0 / periods * kept_share
