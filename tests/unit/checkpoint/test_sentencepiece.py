"""Merges that reproduce SentencePiece's greedy merging."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from dualpace.checkpoint.sentencepiece import merges_from_scores


def greedy(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule: merge the neighbours with the best union, the leftmost among equals."""
    symbols = list(text)
    while True:
        pairs = [
            (-scores[left + right], at)
            for at, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in scores
        ]
        if not pairs:
            return symbols
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def by_merges(text: str, scores: dict[str, float]) -> list[str]:
    vocabulary = {piece: index for index, piece in enumerate(scores)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges_from_scores(scores)))
    tokens: list[str] = tokenizer.encode(text).tokens
    return tokens


PIECES = st.lists(st.text("abc", min_size=2, max_size=6), min_size=1, max_size=24, unique=True)


@given(
    PIECES,
    st.lists(st.text("abc", max_size=40), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
@settings(max_examples=300, deadline=None)
def test_merges_equal_greedy_merging(
    pieces: list[str], texts: list[str], rng: random.Random
) -> None:
    # As in a real vocabulary: every piece has its own score, single characters the lowest.
    ranks = list(range(len(pieces)))
    rng.shuffle(ranks)
    scores = {piece: -float(rank) for piece, rank in zip(pieces, ranks, strict=True)}
    scores |= {character: -1000.0 - i for i, character in enumerate("abc")}
    for text in texts:
        assert by_merges(text, scores) == greedy(text, scores)


@given(st.integers(1, 60))
def test_runs_of_one_character_merge_from_the_left(length: int) -> None:
    scores = {"a": -9.0, "aa": -1.0, "aaaa": -2.0, "aaa": -3.0, "aaaaaaaa": -4.0}
    assert by_merges("a" * length, scores) == greedy("a" * length, scores)


def test_pieces_that_cannot_be_reached_have_no_merges() -> None:
    scores = {"a": -9.0, "b": -9.5, "ab": -1.0, "abab": -2.0, "bxb": -3.0}
    assert merges_from_scores(scores) == [("a", "b"), ("ab", "ab")]
