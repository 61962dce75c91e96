"""Sizes to measure at."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.profiler.knots import QUICK_KNOTS, THOROUGH_KNOTS, Knots, lengths, pairs
from dualpace.scheduling.cost import chunk_pairs

BOTH = pytest.mark.parametrize("knots", [QUICK_KNOTS, THOROUGH_KNOTS], ids=["quick", "thorough"])


def rising(values: tuple[int, ...]) -> bool:
    return bool(values) and all(a < b for a, b in itertools.pairwise(values)) and values[0] > 0


@BOTH
def test_every_axis_rises(knots: Knots) -> None:
    axes = (knots.rows, knots.grid_rows, knots.kv_tokens, knots.sizes, knots.linear_rows)
    assert all(rising(axis) for axis in axes)
    assert rising(tuple(pairs(n, start) for n, start in knots.prefills))
    assert knots.kv_tokens[0] >= knots.grid_rows[-1]


@BOTH
@given(most=st.integers(0, 1 << 20))
def test_a_cut_fits_and_leaves_tables_that_can_be_read(knots: Knots, most: int) -> None:
    cut = knots.cut(most)
    assert rising(cut.kv_tokens) and cut.prefills and cut.steps
    if most >= knots.steps[0][1]:
        assert max(cut.kv_tokens) <= most
        assert all(sum(prefill) <= most or prefill == knots.prefills[0] for prefill in cut.prefills)
        assert all(tokens <= most for _, tokens in cut.steps)


@given(st.integers(1, 300), st.integers(0, 100_000))
def test_kv_tokens_are_spread_evenly(rows: int, more: int) -> None:
    spread = lengths(rows, rows + more)
    assert (len(spread), sum(spread)) == (rows, rows + more)
    assert min(spread) >= 1 and max(spread) - min(spread) <= 1


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_pairs_are_those_of_the_cost_model(tokens: int, start: int) -> None:
    assert pairs(tokens, start) == chunk_pairs(start, tokens)
