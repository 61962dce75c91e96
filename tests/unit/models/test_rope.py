"""Rope tables against formulas written out in float64, and properties that any rope has."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.checkpoint import (
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)
from dualpace.models.rope import attention_factor, inverse_frequencies, rope_table, rotate

CPU = torch.device("cpu")
LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)
YARN = YarnScaling(
    factor=4.0,
    original_context=32768,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=True,
    attention_factor=0.1 * math.log(4.0) + 1.0,
)


def llama3_frequency(plain: float) -> float:
    wavelength = 2 * math.pi / plain
    if wavelength < 8192 / 4:
        return plain
    if wavelength > 8192 / 1:
        return plain / 8
    smooth = (8192 / wavelength - 1) / (4 - 1)
    return (1 - smooth) * plain / 8 + smooth * plain


def yarn_frequency(pair: int, plain: float, theta: float, dim: int) -> float:
    def at(rotations: float) -> float:
        return dim * math.log(32768 / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(at(32)), 0), min(math.ceil(at(1)), dim - 1)
    ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
    return plain / 4 * ramp + plain * (1 - ramp)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_frequencies_follow_their_formulas(theta: float, dim: int) -> None:
    plain = [theta ** (-2 * i / dim) for i in range(dim // 2)]
    divisors = tuple(1.0 + 0.25 * i for i in range(dim // 2))
    expected: list[tuple[RopeScaling | None, list[float]]] = [
        (None, plain),
        (LinearScaling(factor=4.0), [f / 4 for f in plain]),
        (LLAMA3, [llama3_frequency(f) for f in plain]),
        (YARN, [yarn_frequency(i, f, theta, dim) for i, f in enumerate(plain)]),
        (
            FrequencyFactors(factors=divisors),
            [f / d for f, d in zip(plain, divisors, strict=True)],
        ),
    ]
    for scaling, values in expected:
        found = inverse_frequencies(RopeConfig(theta=theta, rotary_dim=dim, scaling=scaling))
        # Powers in float32: a few units in the last place.
        torch.testing.assert_close(
            found.double(), torch.tensor(values, dtype=torch.float64), rtol=2e-6, atol=0
        )


def test_llama3_scaling_has_all_three_ranges() -> None:
    plain = [500_000.0 ** (-2 * i / 128) for i in range(64)]
    ratios = {round(llama3_frequency(f) / f, 6) for f in plain}
    assert {1.0, 0.125} < ratios


def test_only_yarn_and_longrope_have_an_attention_factor() -> None:
    def factor(scaling: RopeScaling | None) -> float:
        return attention_factor(RopeConfig(theta=1e4, rotary_dim=8, scaling=scaling))

    assert factor(None) == factor(LLAMA3) == factor(LinearScaling(factor=2.0)) == 1.0
    assert factor(YARN) == YARN.attention_factor
    assert factor(FrequencyFactors(factors=(1.0,) * 4, attention_factor=1.19)) == 1.19


def test_the_attention_factor_stretches_rotated_heads() -> None:
    plain = RopeConfig(theta=1e4, rotary_dim=8)
    stretched = RopeConfig(
        theta=1e4,
        rotary_dim=8,
        scaling=FrequencyFactors(factors=(1.0,) * 4, attention_factor=1.5),
    )
    tables = [rope_table(r, 9, dtype=torch.float32, device=CPU) for r in (plain, stretched)]
    torch.testing.assert_close(tables[1], tables[0] * 1.5)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 100))
@settings(deadline=None, max_examples=50)
def test_products_depend_on_the_distance_alone(i: int, j: int, shift: int) -> None:
    table = rope_table(RopeConfig(theta=1e4, rotary_dim=16), 501, dtype=torch.float64, device=CPU)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 16, generator=generator, dtype=torch.float64)

    def product(a: int, b: int) -> float:
        return float((rotate(q, table[a : a + 1]) * rotate(k, table[b : b + 1])).sum())

    # Angles are float32 in the table: at 500 radians they are off by up to 3e-5.
    assert product(i, j) == pytest.approx(product(i + shift, j + shift), abs=1e-3)


def test_rotation_is_by_halves_and_leaves_the_rest() -> None:
    heads = torch.zeros(1, 1, 12)
    heads[0, 0, 1], heads[0, 0, 10] = 1.0, 5.0
    table = rope_table(RopeConfig(theta=1e4, rotary_dim=8), 4, dtype=torch.float32, device=CPU)
    rotated = rotate(heads, table[3:4])[0, 0]
    angle = 3 * 1e4 ** (-2 / 8)
    expected = torch.zeros(12)
    expected[1], expected[5], expected[10] = math.cos(angle), math.sin(angle), 5.0
    torch.testing.assert_close(rotated, expected)
