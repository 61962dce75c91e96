"""How a batch is split over threads: everything once, in equal pieces."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.kernels import _native
from dualpace.kernels.reference import attended_positions

SPAN = _native.SPAN_KEYS
MOST = _native.MOST_SPAN_KEYS


def keys_between(
    lengths: list[int], strips: int, window: int, begin: tuple[int, int], end: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return every (strip, position) between two bounds, counted one by one."""
    return [
        (strip, position)
        for strip in range(begin[0], min(end[0], len(lengths) * strips - 1) + 1)
        for position in attended_positions(lengths[strip // strips], window)
        if begin <= (strip, position // SPAN) < end
        or (strip > begin[0] and (strip, position // SPAN) < end)
    ]


@given(
    lengths=st.lists(st.integers(0, 1500), min_size=1, max_size=6),
    kv_heads=st.integers(1, 4),
    group=st.integers(1, 9),
    window=st.sampled_from([0, 1, 100, 128, 600]),
    parts=st.integers(1, 9),
)
def test_each_key_is_in_one_part_and_parts_are_equal_within_a_span(
    lengths: list[int], kv_heads: int, group: int, window: int, parts: int
) -> None:
    together, bounds = _native.attention_plan(
        np.array(lengths, np.int32),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        window=window,
        num_parts=parts,
    )
    assert kv_heads % together == 0
    strips = kv_heads // together
    assert len(bounds) == parts + 1
    pieces = [
        keys_between(lengths, strips, window, begin, end)
        for begin, end in itertools.pairwise(bounds)
    ]
    everything = [
        (strip, position)
        for strip in range(len(lengths) * strips)
        for position in attended_positions(lengths[strip // strips], window)
    ]
    assert list(itertools.chain.from_iterable(pieces)) == everything
    for piece in pieces:
        assert abs(len(piece) - len(everything) / parts) <= SPAN + 1
    # Whoever takes heads together still gives each part enough to be about equal.
    assert together == 1 or len(everything) / parts >= 8 * SPAN


def test_one_long_sequence_occupies_every_thread() -> None:
    _, bounds = _native.attention_plan(
        np.array([10 * SPAN], np.int32), heads=1, kv_heads=1, window=0, num_parts=5
    )
    assert bounds == [(0, 0), (0, 2), (0, 4), (0, 6), (0, 8), (1, 0)]


@pytest.mark.parametrize(("left", "spans"), [(1, 1), (MOST - SPAN, 1), (MOST - SPAN + 1, 2)])
def test_a_few_keys_that_are_left_belong_to_the_span_before(left: int, spans: int) -> None:
    # As many parts as keys: every edge of a span is the begin of one.
    length = SPAN + left
    _, bounds = _native.attention_plan(
        np.array([length], np.int32), heads=1, kv_heads=1, window=0, num_parts=length
    )
    assert sorted(set(bounds)) == [(0, span) for span in range(spans)] + [(1, 0)]


def test_a_long_sequence_among_short_ones_is_shared() -> None:
    lengths = [16] * 8 + [100 * SPAN] + [16] * 8
    _, bounds = _native.attention_plan(
        np.array(lengths, np.int32), heads=1, kv_heads=1, window=0, num_parts=4
    )
    assert [strip for strip, _ in bounds[1:-1]] == [8, 8, 8]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "together"),
    [(9, 3, 3), (8, 8, 8), (32, 8, 4), (64, 8, 2), (40, 5, 1), (32, 1, 1), (48, 48, 16)],
)
def test_kv_heads_that_lie_side_by_side_are_taken_together(
    heads: int, kv_heads: int, together: int
) -> None:
    lengths = np.full(32, 1024, np.int32)
    found, _ = _native.attention_plan(
        lengths, heads=heads, kv_heads=kv_heads, window=0, num_parts=2
    )
    assert found == together
