"""What the kernels must compute, in float64 NumPy, and how far fp32 may stray from it.

Written for reading; slow; for tests only.
"""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

UNIT_ROUNDOFF = 2.0**-24
"""Largest relative error of one fp32 operation."""

BFLOAT16_ROUNDOFF = 2.0**-8
"""Largest relative error of rounding to bfloat16."""

EXP2_ERROR = 2 * UNIT_ROUNDOFF
"""Relative error of the kernels' 2^x beyond that of its argument."""

Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]


def attended_positions(length: int, window: int) -> range:
    """Return the key positions that a sequence of `length` keys attends to; `window` 0: all."""
    return range(max(0, length - window) if window > 0 else 0, length)


def gather_keys_and_values(
    kv: Float64Array, table: Int32Array, positions: range
) -> tuple[Float64Array, Float64Array]:
    """Return keys and values at `positions`, each [kv_heads, len(positions), head_dim].

    `kv` is [num_blocks, 2, kv_heads, block_size, head_dim], `table` the sequence's block ids.
    """
    block_size = kv.shape[3]
    index = np.asarray(positions, dtype=np.int64)
    rows = kv[table[index // block_size], :, :, index % block_size, :]
    return rows[:, 0].transpose(1, 0, 2), rows[:, 1].transpose(1, 0, 2)


def attention_weights(query: Float64Array, keys: Float64Array, scale: float) -> Float64Array:
    """Return softmax(scale * query keysᵀ), [kv_heads, group, positions].

    `query` is [kv_heads, group, head_dim], `keys` [kv_heads, positions, head_dim].
    """
    scores = scale * np.einsum("kgd,kpd->kgp", query, keys)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    normalised: Float64Array = weights / weights.sum(axis=2, keepdims=True)
    return normalised


def paged_attention_decode(
    query: Float64Array,
    kv: Float64Array,
    block_tables: Int32Array,
    rows: Int32Array,
    lengths: Int32Array,
    *,
    scale: float,
    window: int = 0,
) -> Float64Array:
    """Return [batch, heads, head_dim]; arguments as in the native function of this name."""
    kv_heads = kv.shape[2]
    out = np.zeros_like(query)
    for b, length in enumerate(lengths.tolist()):
        if length == 0:
            continue
        grouped = query[b].reshape(kv_heads, -1, query.shape[2])
        positions = attended_positions(length, window)
        keys, values = gather_keys_and_values(kv, block_tables[rows[b]], positions)
        weights = attention_weights(grouped, keys, scale)
        out[b] = np.einsum("kgp,kpd->kgd", weights, values).reshape(query.shape[1:])
    return out


def paged_attention_bound(
    query: Float64Array,
    kv: Float64Array,
    block_tables: Int32Array,
    rows: Int32Array,
    lengths: Int32Array,
    *,
    scale: float,
    window: int = 0,
    span_keys: int,
    rounded_weights: bool = False,
) -> Float64Array:
    """Return how far a right fp32 result may be from `paged_attention_decode`, element by element.

    Standard first-order rounding analysis (Higham, Accuracy and Stability of Numerical Algorithms,
    chapters 3 and 4), with u the unit roundoff. A score in units of log2 is a dot product of
    head_dim terms with a query scaled by a factor that was rounded four times, less a maximum: its
    error is at most (head_dim + 8) u max |q|.|k|. A weight inherits ln 2 times that, and the error
    of 2^x. Sums have at most `span_keys` terms in a row and are folded once a span, at five
    roundings and one 2^x each. Numerator and denominator both carry all of it, and are divided.
    With `rounded_weights`, weights are rounded to bfloat16 in the numerator.
    """
    kv_heads, head_dim = kv.shape[2], kv.shape[4]
    bound = np.zeros_like(query)
    for b, length in enumerate(lengths.tolist()):
        if length == 0:
            continue
        grouped = query[b].reshape(kv_heads, -1, head_dim)
        positions = attended_positions(length, window)
        keys, values = gather_keys_and_values(kv, block_tables[rows[b]], positions)
        size = np.einsum("kgd,kpd->kgp", np.abs(grouped), np.abs(keys)).max(axis=2)
        score_error = (head_dim + 8) * UNIT_ROUNDOFF * abs(scale) * size  # already times ln 2
        spans = len(positions) // span_keys + 2
        sums = (min(len(positions), span_keys) + 5 * spans) * UNIT_ROUNDOFF + spans * EXP2_ERROR
        relative = 2 * (score_error + EXP2_ERROR + sums) + UNIT_ROUNDOFF
        if rounded_weights:
            relative = relative + BFLOAT16_ROUNDOFF
        weights = attention_weights(grouped, keys, scale)
        magnitude = np.einsum("kgp,kpd->kgd", weights, np.abs(values))
        bound[b] = (relative[:, :, None] * magnitude).reshape(query.shape[1:])
    # Second-order terms, and weights too small for fp32.
    return bound * 1.01 + math.ldexp(1.0, -100)


def round_to_float32(x: Fraction) -> Fraction:
    """Round to 24 bits, ties to even; what is then below 2^-126 becomes zero. Has no infinities."""
    if x == 0:
        return x
    exponent = x.numerator.bit_length() - x.denominator.bit_length() - 24
    if abs(x) >= Fraction(2) ** (exponent + 24):
        exponent += 1
    rounded = round(x / Fraction(2) ** exponent) * Fraction(2) ** exponent
    return rounded if abs(rounded) >= Fraction(2) ** -126 else Fraction(0)


def tile_dot(total: float, first: Float64Array, second: Float64Array) -> float:
    """Return one element of what TDPBF16PS adds up (Intel SDM, volume 2), in exact arithmetic.

    `total` is the element as it was; `first` and `second` are [2 * pairs], values of bfloat16. Sums
    of the pairs' first and of their second elements run from zero, one rounding for each product.
    """
    sums = [Fraction(0), Fraction(0)]
    for i, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        product = _flushed(a) * _flushed(b)
        sums[i % 2] = round_to_float32(sums[i % 2] + product)
    return float(round_to_float32(_flushed(total) + round_to_float32(sums[0] + sums[1])))


def _flushed(x: float) -> Fraction:
    return Fraction(x) if abs(x) >= 2.0**-126 else Fraction(0)
