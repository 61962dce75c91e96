"""Products and attention on tiles: the rounding of the instruction, and results within it.

Runs on the portable tile layer everywhere, and on the instructions where the processor has them or
test_emulated_tiles.py emulates them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.kernels import PackedLinear, _native, reference
from tests.kernels.calls import Call, make_call

HEAD_DIMS = [8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256]
EXACT_SCALE = float(np.log(2.0)) / 8
"""Scores in log2 are then an eighth of the products: no query of bfloat16 is rounded again."""


def bfloats(rng: np.random.Generator, shape: tuple[int, ...], exponents: int) -> torch.Tensor:
    """Random bfloat16 of either sign within 2^-exponents and 2^exponents, as float32."""
    scale = 2.0 ** rng.integers(-exponents, exponents, shape)
    values = torch.from_numpy(rng.uniform(-2, 2, shape) * scale)
    return values.float().bfloat16().float()


def product(level: str, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    packed = PackedLinear(weight, format="bfloat16", num_threads=1)
    out = torch.empty(len(x), len(weight))
    packed.multiply(x, out, rounding=True, num_threads=1, isa=level)
    return out


# Of 2^-66 by 2^-66 and less nothing is left; sums of some of them are just above or below 2^-126.
@pytest.mark.parametrize("exponents", [1, 12, 40, 63, 66])
@pytest.mark.parametrize("inputs", [2, 32, 90])
def test_rounds_as_the_manual_says(tiled: str, exponents: int, inputs: int) -> None:
    rng = np.random.default_rng(exponents)
    x, weight = bfloats(rng, (6, inputs), exponents), bfloats(rng, (5, inputs), exponents)
    if exponents == 66:
        x = x * 2.0**-62  # some are subnormal
    out = product(tiled, x, weight)
    for row, column in np.ndindex(6, 5):
        total = 0.0
        for first in range(0, inputs, 32):
            part = slice(first, first + 32)
            total = reference.tile_dot(
                total, x[row, part].double().numpy(), weight[column, part].double().numpy()
            )
        assert out[row, column].item() == total
    # The portable twin's vectors have no fused operation: they lose products that are subnormal.
    if exponents < 60 or not tiled.startswith("portable"):
        assert torch.equal(product(tiled, x[:3].contiguous(), weight), out[:3])


@given(
    rows=st.integers(1, 80),
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 70),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=25, deadline=None)
def test_vectors_and_tiles_give_the_same_bits(
    tiled: str, rows: int, inputs: int, outputs: int, seed: int
) -> None:
    """Few rows go to vectors, more to tiles: nobody can tell from a row."""
    rng = np.random.default_rng(seed)
    x, weight = bfloats(rng, (rows, 2 * inputs), 20), bfloats(rng, (outputs, 2 * inputs), 20)
    together = product(tiled, x, weight)
    few = _native.LEAST_TILE_ROWS - 1
    for first in range(0, rows, few):
        part = slice(first, min(first + few, rows))
        assert torch.equal(product(tiled, x[part].contiguous(), weight), together[part])


def test_the_thread_s_own_rounding_of_subnormals_is_kept(tiled: str) -> None:
    for rows in (1, 8):
        product(tiled, torch.ones(rows, 32), torch.ones(16, 32))
        tiny = torch.tensor([2.0**-130])
        assert (tiny * 0.5).item() == 2.0**-131


def rounded(call: Call) -> Call:
    """The same call, whose queries lose nothing when they are rounded."""
    return replace(call, query=call.query.bfloat16().float(), scale=EXACT_SCALE, rounding=True)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    kv_heads = draw(st.integers(1, 2))
    group = draw(st.sampled_from([4, 5, 6, 7, 8, 12, 16, 17, 24]))
    call = make_call(
        draw(st.lists(st.integers(0, 400), min_size=0, max_size=4)),
        heads=(group * kv_heads, kv_heads),
        head_dim=draw(st.sampled_from(HEAD_DIMS)),
        block_size=draw(st.sampled_from([16, 32, 48, 64])),
        window=draw(st.sampled_from([0, 0, 1, 15, 16, 17, 100, 128, 200])),
        dtype="bfloat16",
        seed=draw(st.integers(0, 2**32 - 1)),
        shared_blocks=draw(st.integers(0, 3)),
        same_row=draw(st.booleans()),
    )
    return rounded(call)


@given(call=calls(), num_threads=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_attention_agrees_with_the_oracle(tiled: str, call: Call, num_threads: int) -> None:
    call.check(call.run(tiled, num_threads))


@pytest.mark.parametrize("group", [4, 5, 8, 9, 16, 17])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_group_and_head_size(tiled: str, group: int, head_dim: int) -> None:
    call = rounded(make_call([1, 150], heads=(group, 1), head_dim=head_dim, dtype="bfloat16"))
    call.check(call.run(tiled))


@pytest.mark.parametrize("block_size", [16, 32, 48, 64])
def test_lengths_around_block_and_span_boundaries(tiled: str, block_size: int) -> None:
    lengths = [e + d for e in (1, block_size, 2 * block_size, 128, 256) for d in (-1, 0, 1)]
    call = rounded(make_call(lengths, heads=(8, 2), block_size=block_size, dtype="bfloat16"))
    call.check(call.run(tiled, num_threads=2))


@pytest.mark.parametrize("window", [1, 15, 16, 17, 127, 128, 129, 300])
def test_windows_that_begin_anywhere(tiled: str, window: int) -> None:
    lengths = [1, 16, 128, 129, 256, 300, 301]
    call = rounded(make_call(lengths, heads=(4, 1), window=window, dtype="bfloat16"))
    call.check(call.run(tiled, num_threads=2))


def test_not_a_bit_changes_with_threads_or_the_rest_of_the_batch(tiled: str) -> None:
    call = rounded(make_call([700, 3, 129, 0, 64], heads=(16, 2), dtype="bfloat16"))
    together = call.run(tiled, 3)
    assert torch.equal(call.run(tiled, 1), together)
    for sequence in range(5):
        assert torch.equal(call.only(sequence).run(tiled, 2)[0], together[sequence])


@pytest.mark.parametrize(
    ("heads", "dtype"), [((3, 1), "bfloat16"), ((8, 2), "float16"), ((8, 2), "float32")]
)
def test_what_is_not_for_tiles_is_not_rounded(
    tiled: str, heads: tuple[int, int], dtype: str
) -> None:
    call = make_call([200, 31], heads=heads, dtype=dtype)
    assert torch.equal(replace(call, rounding=True).run(tiled), call.run(tiled))


def test_what_is_for_tiles_is_rounded(tiled: str) -> None:
    call = make_call([200, 31], heads=(8, 2), dtype="bfloat16")
    out, exact = replace(call, rounding=True).run(tiled), call.run(tiled)
    assert not torch.equal(out, exact)
    # A score is at most 8 |q| |k|: the queries' rounding alone moves it by up to 2^-8 of that.
    assert torch.allclose(out, exact, atol=0.05, rtol=0)


def test_a_score_far_below_the_largest_has_no_weight_at_all(tiled: str) -> None:
    call = rounded(make_call([20], heads=(4, 1), head_dim=32, dtype="bfloat16"))
    call.query.fill_(1.0)
    block = int(call.block_tables[0, 0])
    call.kv[block, 0, 0, :] = 100.0
    call.kv[block, 0, 0, 5] = -100.0
    call.kv[block, 1, 0, 5] = 3e38
    assert (call.run(tiled).abs() < 10).all()
