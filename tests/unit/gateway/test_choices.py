"""Tokens in, text out: stop strings across token borders, what counts, what ends a choice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.request import Engine, FinishReason, SamplingParams
from dualpace.gateway.choices import Choice, Finish, TextOptions, start_choices
from dualpace.gateway.engines.backend import GeneratedToken, GenerationEnd, GenerationParams
from dualpace.gateway.errors import ApiError
from dualpace.gateway.planning import ChoicePlan
from dualpace.gateway.text.model import ServedModel
from dualpace.gateway.text.prompts import TokenizedPrompt
from tests.unit.gateway.conftest import CORPUS, ids_of

STOP = GenerationEnd(FinishReason.STOP)
LENGTH = GenerationEnd(FinishReason.LENGTH)


def make_choice(
    model: ServedModel,
    *,
    stops: tuple[str, ...] = (),
    stop_token_ids: tuple[int, ...] = (2,),
    client_stops: frozenset[int] = frozenset(),
    **options: Any,
) -> Choice:
    params = GenerationParams(
        max_tokens=1000, stop_token_ids=stop_token_ids, sampling=SamplingParams()
    )
    plan = ChoicePlan(index=0, prompt=TokenizedPrompt((1,)), params=params)
    text = TextOptions(stop_strings=stops, client_stop_token_ids=client_stops, **options)
    return start_choices([plan], model.token_text, text)[0]


def run(choice: Choice, ids: list[int], end: GenerationEnd) -> str:
    """Feed tokens until the choice is finished; return its text."""
    text = ""
    for position, token_id in enumerate(ids, start=1):
        delta = choice.push(GeneratedToken(position, token_id, Engine(position % 2)))
        text += "" if delta is None else delta.text
        if choice.finish is not None:
            return text
    delta = choice.end(end)
    return text + ("" if delta is None else delta.text)


@given(
    text=st.sampled_from(CORPUS),
    ends=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 6)), min_size=1, max_size=3),
)
def test_stop_strings_taken_from_the_text_end_it_where_they_first_occur(
    demo_model: ServedModel, text: str, ends: list[tuple[int, int]]
) -> None:
    stops = tuple({text[s % len(text) :][:n] for s, n in ends})
    choice = make_choice(demo_model, stops=stops)
    shown = run(choice, ids_of(demo_model, text), LENGTH)
    end, _, stop = min((text.find(s) + len(s), -len(s), s) for s in stops)
    assert shown == text[: end - len(stop)]
    assert choice.finish == Finish("stop", stop)


@given(text=st.sampled_from(CORPUS), places=st.lists(st.integers(0, 200), max_size=3))
def test_stop_strings_that_only_begin_in_the_text_change_nothing(
    demo_model: ServedModel, text: str, places: list[int]
) -> None:
    stops = tuple(text[p % len(text) :][:4] + "\x00" for p in places)
    choice = make_choice(demo_model, stops=stops)
    assert run(choice, ids_of(demo_model, text), LENGTH) == text
    assert choice.finish == Finish("length")


@given(text=st.sampled_from(CORPUS), place=st.integers(0, 200))
def test_the_tokens_counted_are_those_up_to_the_one_that_completed_the_stop_string(
    demo_model: ServedModel, text: str, place: int
) -> None:
    ids = ids_of(demo_model, text)
    stop = text[place % len(text) :][:3]
    choice = make_choice(demo_model, stops=(stop,))
    run(choice, ids, LENGTH)
    enough = next(n for n in range(1, len(ids) + 1) if stop in demo_model.tokenizer.decode(ids[:n]))
    assert choice.num_tokens == sum(choice.tokens_by_engine) == enough


def test_the_end_tokens_text_is_not_shown_but_it_counts(demo_model: ServedModel) -> None:
    choice = make_choice(demo_model)
    assert run(choice, [*ids_of(demo_model, "Yes."), 2], STOP) == "Yes."
    assert choice.finish == Finish("stop", None)
    assert choice.num_tokens == len(ids_of(demo_model, "Yes.")) + 1


def test_a_clients_stop_token_is_not_shown_and_is_the_stop_reason(demo_model: ServedModel) -> None:
    ids = ids_of(demo_model, "one two")
    choice = make_choice(demo_model, stop_token_ids=(2, ids[-1]), client_stops=frozenset({ids[-1]}))
    assert run(choice, ids, STOP) == demo_model.tokenizer.decode(ids[:-1])
    assert choice.finish == Finish("stop", ids[-1])


def test_held_back_text_comes_with_the_end(demo_model: ServedModel) -> None:
    choice = make_choice(demo_model, stops=("jumps over the moon",))
    assert run(choice, [*ids_of(demo_model, "A cow jumps over"), 2], STOP) == "A cow jumps over"


def test_an_incomplete_character_at_the_end_can_complete_no_stop_string(
    demo_model: ServedModel,
) -> None:
    table = demo_model.token_text
    half = next(i for i in range(len(table.pieces)) if table.piece(i) == b"\xe2")
    choice = make_choice(demo_model, stops=("€",))
    assert run(choice, [half], LENGTH) == "\N{REPLACEMENT CHARACTER}"
    assert choice.finish == Finish("length")


def test_offsets_and_tokens_of_deltas_follow_the_text(demo_model: ServedModel) -> None:
    text = CORPUS[16]
    choice = make_choice(demo_model)
    ids = ids_of(demo_model, text)
    shown, tokens = "", []
    for position, token_id in enumerate(ids):
        delta = choice.push(GeneratedToken(position, token_id, Engine.GPU))
        if delta is not None:
            assert delta.text
            assert delta.tokens[0].text_offset == len(shown)
            shown += delta.text
            tokens += [token.token_id for token in delta.tokens]
    assert shown == text
    assert tokens == ids


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.CANCELLED])
def test_an_end_that_is_none_of_ours_is_an_error(
    demo_model: ServedModel, reason: FinishReason
) -> None:
    choice = make_choice(demo_model)
    with pytest.raises(ApiError, match="the device is gone") as caught:
        choice.end(GenerationEnd(reason, "the device is gone"))
    assert caught.value.status == 500


@given(
    text=st.sampled_from(CORPUS),
    ends=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 6)), min_size=1, max_size=3),
)
def test_an_included_stop_string_ends_the_text_it_belongs_to(
    demo_model: ServedModel, text: str, ends: list[tuple[int, int]]
) -> None:
    stops = tuple({text[s % len(text) :][:n] for s, n in ends})
    without = make_choice(demo_model, stops=stops)
    shown = run(without, ids_of(demo_model, text), LENGTH)
    choice = make_choice(demo_model, stops=stops, include_stop=True)
    included = run(choice, ids_of(demo_model, text), LENGTH)
    assert choice.finish == without.finish
    assert choice.finish is not None
    assert included == shown + str(choice.finish.stop_reason)


def test_an_included_stop_token_shows_its_text(demo_model: ServedModel) -> None:
    [word] = ids_of(demo_model, " dog")
    ids = [*ids_of(demo_model, "The"), word]
    for included, expected in ((False, "The"), (True, "The dog")):
        choice = make_choice(
            demo_model,
            stop_token_ids=(word,),
            client_stops=frozenset({word}),
            include_stop=included,
        )
        assert run(choice, ids, STOP) == expected
        assert choice.finish == Finish("stop", word)


def test_special_tokens_show_if_asked_for(demo_model: ServedModel) -> None:
    special = demo_model.tokenizer.token_to_id("<|im_start|>")
    assert special is not None
    ids = [special, *ids_of(demo_model, "Hi")]
    assert run(make_choice(demo_model), ids, LENGTH) == "Hi"
    assert run(make_choice(demo_model, show_special=True), ids, LENGTH) == "<|im_start|>Hi"


def test_stop_strings_are_not_looked_for_before_min_tokens(demo_model: ServedModel) -> None:
    ids = ids_of(demo_model, "one two one two one two")
    choice = make_choice(demo_model, stops=("two",), min_tokens=3)
    assert run(choice, ids, LENGTH) == "one two one "
    assert choice.finish == Finish("stop", "two")


def test_a_refusal_of_the_engines_is_the_clients_fault(demo_model: ServedModel) -> None:
    choice = make_choice(demo_model)
    with pytest.raises(ApiError, match="no token") as caught:
        choice.end(GenerationEnd(FinishReason.REFUSED, "the grammar allows no token"))
    assert caught.value.status == 400
