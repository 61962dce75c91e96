"""Grammars over the demo model's vocabulary: what they allow, what they refuse, what they cost."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from dualpace.checkpoint import Checkpoint, fetch_demo_model, open_checkpoint
from dualpace.core.errors import GrammarError
from dualpace.grammar import GrammarMatcher, Grammars, vocabulary_of
from dualpace.grammar import grammars as module

END = 2
REGEX = LLMatcher.grammar_from_regex
DATE = r"[12][0-9]{3}-[01][0-9]"
PERSON = LLMatcher.grammar_from_json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


@cache
def demo() -> Checkpoint:
    return open_checkpoint(fetch_demo_model())


@cache
def vocabulary() -> LLTokenizer:
    return vocabulary_of(demo())()


@pytest.fixture
def grammars() -> Iterator[Grammars]:
    with closing(Grammars(vocabulary)) as found:
        yield found


def encode(text: str) -> list[int]:
    ids: list[int] = demo().tokenizer().tokenizer.encode(text).ids
    return ids


def allowed_ids(matcher: GrammarMatcher) -> list[int]:
    bits = np.unpackbits(matcher.allowed().view(np.uint8), bitorder="little")
    ids: list[int] = np.flatnonzero(bits).tolist()
    return ids


def walk(matcher: GrammarMatcher, seed: int, max_tokens: int = 40) -> list[int]:
    """Return tokens chosen at random among those allowed, the end token as soon as it is."""
    random = np.random.default_rng(seed)
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        ids = allowed_ids(matcher)
        if END in ids:
            return tokens
        tokens.append(int(random.choice(ids)))
        matcher.consume(tokens[-1:])
    return tokens


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_whatever_is_allowed_leads_to_what_was_asked_for(seed: int) -> None:
    with closing(Grammars(vocabulary)) as grammars:
        tokens = walk(grammars.matcher(REGEX(DATE)), seed)
    assert re.fullmatch(DATE, demo().tokenizer().tokenizer.decode(tokens))


@given(seed=st.integers(0, 2**32), cut=st.integers(0, 40))
@settings(max_examples=25)
def test_a_matcher_rebuilt_from_tokens_is_where_the_first_one_is(seed: int, cut: int) -> None:
    """As when a request moves to the other engine."""
    with closing(Grammars(vocabulary)) as grammars:
        tokens = walk(grammars.matcher(PERSON), seed)[:cut]
        stepwise = grammars.matcher(PERSON)
        for token_id in tokens:
            stepwise.consume([token_id])
            stepwise.allowed()
        rebuilt = grammars.matcher(PERSON)
        if tokens:
            rebuilt.consume(tokens)
        assert allowed_ids(rebuilt) == allowed_ids(stepwise)
        assert rebuilt.complete == stepwise.complete


def test_the_end_is_allowed_when_the_text_is_complete_and_not_before(grammars: Grammars) -> None:
    matcher = grammars.matcher(PERSON)
    text = json.dumps({"name": "Zoë 🦊", "age": 41}, ensure_ascii=False)
    for token_id in encode(text):
        assert not matcher.complete
        assert END not in allowed_ids(matcher)
        matcher.consume([token_id])
    assert matcher.complete
    assert END in allowed_ids(matcher)


def test_every_end_token_of_the_model_ends_a_text(grammars: Grammars) -> None:
    matcher = grammars.matcher(REGEX("a"))
    matcher.consume(encode("a"))
    ends = demo().generation.eos_token_ids
    assert ends
    assert set(ends) <= set(allowed_ids(matcher))


def test_a_token_that_does_not_fit_is_an_error(grammars: Grammars) -> None:
    matcher = grammars.matcher(REGEX("[0-9]+"))
    with pytest.raises(GrammarError):
        matcher.consume(encode("no"))


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        "{",
        "no grammar at all",
        LLMatcher.grammar_from_lark("start: nowhere"),
        REGEX("[0-9"),
        LLMatcher.grammar_from_json_schema({"type": "nonsense"}),
        LLMatcher.grammar_from_json_schema({"$ref": "https://example.com/schema.json"}),
    ],
)
def test_bad_grammars_are_refused_in_a_sentence_every_time(
    grammars: Grammars, grammar: str
) -> None:
    messages = []
    for _ in range(2):
        with pytest.raises(GrammarError) as error:
            grammars.matcher(grammar)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert 20 < len(messages[0]) < 400
    assert "\n" not in messages[0]


def test_preparing_waits_for_nothing_and_tells_when_it_is_done(grammars: Grammars) -> None:
    told = threading.Event()
    began = time.monotonic()
    grammars.prepare(PERSON, told.set)
    assert time.monotonic() - began < 0.2
    assert told.wait(20)
    assert grammars.ready(PERSON)
    assert grammars.matcher(PERSON).allowed().any()


def test_a_grammar_that_breaks_the_compiler_is_told_of_as_well() -> None:
    def broken() -> LLTokenizer:
        raise GrammarError("there is no vocabulary")

    with closing(Grammars(broken)) as grammars:
        told = threading.Event()
        grammars.prepare(PERSON, told.set)
        assert told.wait(20)
        with pytest.raises(GrammarError, match="there is no vocabulary"):
            grammars.matcher(PERSON)


def test_only_so_many_are_kept_the_latest_ones(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT", 3)
    names = [REGEX(letter) for letter in "abcde"]
    for name in names:
        grammars.matcher(name)
        grammars.matcher(names[0])
    assert [grammars.ready(name) for name in names] == [True, False, False, True, True]
    assert not grammars.ready(PERSON)


def test_texts_together_are_bounded(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_CHARACTERS", 300)
    for length in (100, 150, 200):
        grammars.matcher(REGEX("a" * length))
    assert [grammars.ready(REGEX("a" * length)) for length in (100, 150, 200)] == [
        False,
        False,
        True,
    ]
