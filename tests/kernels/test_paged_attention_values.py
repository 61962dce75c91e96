"""Paged decode attention against the float64 oracle.

The tolerance is `reference.paged_attention_bound`: an a-priori bound from the lengths of the sums
and the sizes of the numbers, computed for each element. Inputs are exact in every type.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.kernels import _native
from tests.kernels.calls import Call, make_call

HEAD_DIMS = [8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 192, 256]


@st.composite
def calls(draw: st.DrawFn, dtype: str) -> Call:
    kv_heads = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    return make_call(
        draw(st.lists(st.integers(0, 400), min_size=0, max_size=5)),
        heads=(group * kv_heads, kv_heads),
        head_dim=draw(st.sampled_from(HEAD_DIMS)),
        block_size=draw(st.sampled_from([16, 32, 48, 64])),
        window=draw(st.sampled_from([0, 0, 1, 15, 16, 17, 100, 128, 200])),
        dtype=dtype,
        seed=draw(st.integers(0, 2**32 - 1)),
        shared_blocks=draw(st.integers(0, 3)),
        same_row=draw(st.booleans()),
    )


@given(data=st.data(), num_threads=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_agrees_with_the_oracle(
    isa: str, dtype: str, data: st.DataObject, num_threads: int
) -> None:
    call = data.draw(calls(dtype))
    call.check(call.run(isa, num_threads))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 16])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_group_and_head_size(isa: str, dtype: str, group: int, head_dim: int) -> None:
    call = make_call([1, 150, 170], heads=(2 * group, 2), head_dim=head_dim, dtype=dtype)
    call.check(call.run(isa))


@pytest.mark.parametrize("block_size", [16, 32, 48, 64, 256])
def test_lengths_around_block_and_span_boundaries(isa: str, block_size: int) -> None:
    span, most = _native.SPAN_KEYS, _native.MOST_SPAN_KEYS
    edges = [1, block_size, 2 * block_size, span, most, 2 * span, span + most]
    call = make_call([e + d for e in edges for d in (-1, 0, 1)], block_size=block_size)
    call.check(call.run(isa, num_threads=2))


@pytest.mark.parametrize("window", [1, 15, 16, 17, 127, 128, 129, 300, 301, 2**40])
def test_windows_that_begin_anywhere(isa: str, window: int) -> None:
    call = make_call([1, 16, 128, 129, 256, 300, 301], window=window)
    call.check(call.run(isa, num_threads=2))


def test_one_long_sequence_is_right_when_threads_share_it(isa: str, dtype: str) -> None:
    call = make_call([4096], heads=(8, 1), dtype=dtype)
    call.check(call.run(isa, num_threads=2))


def test_an_empty_sequence_gives_zeros(isa: str) -> None:
    out = make_call([0, 5, 0]).run(isa)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert torch.equal(out[2], torch.zeros_like(out[2]))
    assert out[1].isfinite().all()


def test_an_empty_batch_is_nothing_to_do(isa: str) -> None:
    assert make_call([]).run(isa, num_threads=2).numel() == 0


def test_large_scores_do_not_overflow(isa: str) -> None:
    call = make_call([200])
    loud = Call(
        query=call.query * 1e4,
        kv=call.kv,
        block_tables=call.block_tables,
        rows=call.rows,
        lengths=call.lengths,
        scale=1.0,
        window=0,
    )
    out = loud.run(isa)
    assert out.isfinite().all()
    loud.check(out)
