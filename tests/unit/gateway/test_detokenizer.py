"""Streamed text against the tokenizers library's own decoding of the whole sequence."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dualpace.gateway.text.detokenizer import Detokenizer
from dualpace.gateway.text.model import ServedModel
from tests.unit.gateway.conftest import CORPUS, ids_of

BROKEN = "\N{REPLACEMENT CHARACTER}"
FIRST_BYTE_ID = 3
"""Of the byte-fallback tokenizer; byte b is token 3 + b."""


def pieces_of(model: ServedModel, ids: list[int], prompt: tuple[int, ...] = ()) -> list[str]:
    detokenizer = Detokenizer(model.token_text, prompt)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


def byte_ids(data: bytes) -> list[int]:
    return [FIRST_BYTE_ID + byte for byte in data]


@pytest.fixture(scope="module", params=["demo", "plain"])
def model(request: pytest.FixtureRequest) -> ServedModel:
    chosen = request.getfixturevalue(f"{request.param}_model")
    assert isinstance(chosen, ServedModel)
    return chosen


@pytest.mark.parametrize("text", CORPUS)
def test_text_of_any_script_streams_as_it_decodes(model: ServedModel, text: str) -> None:
    ids = ids_of(model, text)
    pieces = pieces_of(model, ids)
    assert "".join(pieces) == model.tokenizer.decode(ids) == text
    assert not any(BROKEN in piece for piece in pieces)


@given(text=st.text())
def test_arbitrary_text_streams_as_it_decodes(model: ServedModel, text: str) -> None:
    ids = ids_of(model, text)
    assert "".join(pieces_of(model, ids)) == model.tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 49151)))
def test_any_byte_level_tokens_stream_as_they_decode(
    demo_model: ServedModel, ids: list[int]
) -> None:
    assert "".join(pieces_of(demo_model, ids)) == demo_model.tokenizer.decode(ids)


def byte_runs() -> st.SearchStrategy[list[int]]:
    """Text in bytes, or bytes none of which are part of a character."""
    text = st.text(min_size=1, max_size=4).map(lambda t: byte_ids(t.encode()))
    stray = st.lists(st.integers(0x80, 0xC1), min_size=1, max_size=4)
    return text | stray.map(lambda values: byte_ids(bytes(values)))


@given(data=st.data())
def test_byte_tokens_among_others_stream_as_they_decode(
    plain_model: ServedModel, data: st.DataObject
) -> None:
    size = plain_model.tokenizer.get_vocab_size()
    others = st.lists(st.integers(FIRST_BYTE_ID + 256, size - 1), min_size=1, max_size=3)
    groups = data.draw(st.lists(st.tuples(byte_runs(), others)))
    ids = [token_id for run, after in groups for token_id in run + after]
    assert "".join(pieces_of(plain_model, ids)) == plain_model.tokenizer.decode(ids)


@given(data=st.binary(max_size=12))
def test_broken_bytes_never_spoil_the_characters_around_them(
    plain_model: ServedModel, data: bytes
) -> None:
    text = "".join(pieces_of(plain_model, byte_ids(data), (1, 259)))
    assert text.replace(BROKEN, "") == data.decode(errors="ignore").replace(BROKEN, "")


@given(cut=st.integers(0, 10_000), text=st.sampled_from(CORPUS))
def test_a_continuation_has_the_text_that_the_whole_has_beyond_the_prompt(
    model: ServedModel, text: str, cut: int
) -> None:
    ids = ids_of(model, text)
    prompt, rest = ids[: cut % (len(ids) + 1)], ids[cut % (len(ids) + 1) :]
    shown = "".join(pieces_of(model, rest, tuple(prompt)))
    before = model.tokenizer.decode(prompt)
    if model.token_text.decode_errors == "replace":
        before = before.rstrip(BROKEN)  # the character that the prompt ends in
    else:
        assume(BROKEN not in before)  # there the library spoils the whole run of bytes
    assert before + shown == model.tokenizer.decode(ids)


def test_a_character_appears_with_its_last_byte(plain_model: ServedModel) -> None:
    pieces = pieces_of(plain_model, byte_ids("é👩".encode()), (1, 259))
    assert pieces == ["", "é", "", "", "", "👩", ""]


def test_an_incomplete_character_shows_only_at_the_end(demo_model: ServedModel) -> None:
    table = demo_model.token_text
    half = next(i for i in range(len(table.pieces)) if table.piece(i) == b"\xe2")
    assert pieces_of(demo_model, [half]) == ["", BROKEN]


def test_broken_bytes_do_not_pile_up(demo_model: ServedModel) -> None:
    table = demo_model.token_text
    stray = next(i for i in range(len(table.pieces)) if table.piece(i) == b"\x80")
    assert pieces_of(demo_model, [stray] * 1000) == [BROKEN] * 1000 + [""]


def test_special_tokens_have_no_text_and_do_not_part_a_character(plain_model: ServedModel) -> None:
    first, second = byte_ids("é".encode())
    pieces = pieces_of(plain_model, [first, 2, second], (1, 259))
    assert pieces == ["", "", "é", ""]


def test_the_leading_space_is_stripped_only_where_the_whole_text_begins(
    plain_model: ServedModel,
) -> None:
    ids = ids_of(plain_model, "brown")
    assert "".join(pieces_of(plain_model, ids)) == "brown"
    assert "".join(pieces_of(plain_model, ids, (1,))) == "brown"
    assert "".join(pieces_of(plain_model, ids, (1, *ids))) == " brown"
