"""How a batch is split over threads: everything once, in equal pieces."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dualpace.kernels import _native
from dualpace.kernels.reference import attended_positions

SPAN = _native.SPAN_KEYS


def keys_between(
    lengths: list[int], kv_heads: int, window: int, begin: tuple[int, int], end: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return every (strip, position) between two bounds, counted one by one."""
    return [
        (strip, position)
        for strip in range(begin[0], min(end[0], len(lengths) * kv_heads - 1) + 1)
        for position in attended_positions(lengths[strip // kv_heads], window)
        if begin <= (strip, position // SPAN) < end
        or (strip > begin[0] and (strip, position // SPAN) < end)
    ]


@given(
    lengths=st.lists(st.integers(0, 1500), min_size=1, max_size=6),
    kv_heads=st.integers(1, 4),
    window=st.sampled_from([0, 1, 100, 128, 600]),
    parts=st.integers(1, 9),
)
def test_each_key_is_in_one_part_and_parts_are_equal_within_a_span(
    lengths: list[int], kv_heads: int, window: int, parts: int
) -> None:
    bounds = _native.attention_plan(
        np.array(lengths, np.int32), kv_heads=kv_heads, window=window, num_parts=parts
    )
    assert len(bounds) == parts + 1
    pieces = [
        keys_between(lengths, kv_heads, window, begin, end)
        for begin, end in itertools.pairwise(bounds)
    ]
    everything = [
        (strip, position)
        for strip in range(len(lengths) * kv_heads)
        for position in attended_positions(lengths[strip // kv_heads], window)
    ]
    assert list(itertools.chain.from_iterable(pieces)) == everything
    for piece in pieces:
        assert abs(len(piece) - len(everything) / parts) <= SPAN + 1


def test_one_long_sequence_occupies_every_thread() -> None:
    bounds = _native.attention_plan(
        np.array([10 * SPAN], np.int32), kv_heads=1, window=0, num_parts=5
    )
    assert bounds == [(0, 0), (0, 2), (0, 4), (0, 6), (0, 8), (1, 0)]


def test_a_long_sequence_among_short_ones_is_shared() -> None:
    lengths = [16] * 8 + [100 * SPAN] + [16] * 8
    bounds = _native.attention_plan(np.array(lengths, np.int32), kv_heads=1, window=0, num_parts=4)
    assert [strip for strip, _ in bounds[1:-1]] == [8, 8, 8]
