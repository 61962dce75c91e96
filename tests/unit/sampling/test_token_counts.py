"""Counts are those of the sequence, however long it grows."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dualpace.sampling.token_counts import TokenCounts


@given(
    st.lists(st.integers(0, 400), max_size=300),
    st.lists(st.lists(st.integers(0, 400), max_size=60), max_size=8),
)
def test_counts_are_those_of_all_tokens(prompt: list[int], generated: list[list[int]]) -> None:
    counts = TokenCounts()
    counts.add_prompt(prompt)
    for part in generated:
        counts.add_generated(part)
    expected = Counter(token for part in generated for token in part)
    found = dict(zip(counts.ids.tolist(), counts.generated.tolist(), strict=True))
    assert found == {token: expected[token] for token in {*prompt, *expected}}


def test_the_token_that_makes_it_grow_is_counted() -> None:
    counts = TokenCounts()
    counts.add_generated(range(1000))
    assert counts.generated.tolist() == [1] * 1000
