"""Calls in text that arrives in pieces: found whole, once, and nothing else is lost."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from dualpace.gateway.protocol.tools import Function, Tool
from dualpace.gateway.text.model import ServedModel
from dualpace.gateway.tools.calls import CallParser, Piece, ToolCall
from dualpace.gateway.tools.dialect import HERMES, LLAMA3, Dialect, dialect_named
from dualpace.gateway.tools.hermes import CLOSE, OPEN
from dualpace.gateway.tools.prompt import with_tools

JSON_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.lists(st.sampled_from(["</tool_call>", "<tool_call>", *'"\\{}']), max_size=5).map("".join),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=8), JSON_VALUE, max_size=3)
CALLS = st.lists(st.tuples(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), ARGUMENTS), max_size=3)
PROSE = st.text(st.characters(exclude_characters="<{"), max_size=20)
TOOLS = [
    Tool(
        type="function",
        function=Function(
            name="weather",
            parameters={
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        ),
    ),
    Tool(type="function", function=Function(name="now")),
]


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    """Return a text in pieces of these sizes, over and over."""
    pieces, at, turn = [], 0, 0
    while at < len(text):
        pieces.append(text[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    return pieces


def parse(parser: CallParser, pieces: Sequence[str]) -> tuple[str, list[tuple[str, Any]]]:
    """Return the content, and the calls by name and arguments."""
    found: list[Piece] = []
    for piece in pieces:
        found += parser.push(piece)
    found += parser.finish()
    calls = [piece for piece in found if isinstance(piece, ToolCall)]
    assert len({call.call_id for call in calls}) == len(calls)
    content = "".join(piece for piece in found if isinstance(piece, str))
    return content, [(call.name, json.loads(call.arguments)) for call in calls]


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(prose=st.lists(PROSE, min_size=4, max_size=4), calls=CALLS, sizes=SIZES)
def test_hermes_calls_and_the_text_around_them(
    prose: list[str], calls: list[tuple[str, Any]], sizes: list[int]
) -> None:
    text = prose[0]
    for (name, arguments), after in zip(calls, prose[1:], strict=False):
        body = json.dumps({"name": name, "arguments": arguments})
        text += f"{OPEN}\n{body}\n{CLOSE}{after}"
    content, found = parse(HERMES.parser(), cut(text, sizes))
    assert found == calls
    expected = "".join(prose[: len(calls) + 1])
    assert "".join(content.split()) == "".join(expected.split())
    if not calls:
        assert content == text


@given(calls=CALLS.filter(bool), sizes=SIZES, tag=st.booleans())
def test_llama_calls(calls: list[tuple[str, Any]], sizes: list[int], tag: bool) -> None:
    text = "; ".join(json.dumps({"name": n, "parameters": a}) for n, a in calls)
    pieces = cut("<|python_tag|>" * tag + text, sizes)
    assert parse(LLAMA3.parser(), pieces) == ("", calls)


@given(
    text=st.text(st.sampled_from('<>/tol_cal{}":name, \n') | st.characters(), max_size=60)
    | st.sampled_from(
        [OPEN, OPEN + "{}" + CLOSE, '{"name": 3}', '{"name": "x"', "<|python_ta", "{"]
    ),
    sizes=SIZES,
    dialect=st.sampled_from([HERMES, LLAMA3]),
)
def test_what_is_no_call_stays_text(text: str, sizes: list[int], dialect: Dialect) -> None:
    assert parse(dialect.parser(), cut(text, sizes)) == (text, [])


@pytest.mark.parametrize(
    "body",
    [
        "not JSON",
        "[]",
        '{"arguments": {}}',
        '{"name": 5, "arguments": {}}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": {"x": 1e999}}',
        '{"name": "f", "arguments": ' + "[" * 5000,
        '{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}",
        '{"name": "f", "arguments": {"x": "',
        '{"name": "f", "arguments": {"x": "\\',
    ],
)
def test_malformed_calls_are_shown_as_they_are(body: str) -> None:
    text = f"{OPEN}{body}{CLOSE}"
    assert parse(HERMES.parser(), [text]) == (text, [])
    assert parse(HERMES.parser(), [text + "\n" + OPEN, '{"name": "g"}', CLOSE])[1] == [("g", {})]


def test_text_comes_as_soon_as_it_is_certain() -> None:
    parser = HERMES.parser()
    assert parser.push("Well, a < b, <tool") == ["Well, a < b,"]
    assert parser.push("s> are") == [" <tools> are"]
    [call] = parser.push(f' here {OPEN}{{"name": "f"}}{CLOSE}')[1:]
    assert isinstance(call, ToolCall)


@pytest.fixture(scope="module")
def vocabulary(demo_model: ServedModel) -> LLTokenizer:
    return LLTokenizer(demo_model.tokenizer.to_str(), eos_token=2)


def accepts(vocabulary: LLTokenizer, model: ServedModel, lark: str, text: str) -> bool:
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = model.tokenizer.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("dialect", [HERMES, LLAMA3])
def test_the_grammar_of_calls_is_what_the_parser_reads(
    dialect: Dialect, vocabulary: LLTokenizer, demo_model: ServedModel
) -> None:
    def written(name: str, arguments: Any) -> str:
        body = f'{{"name": "{name}", "{dialect.arguments_key}": {json.dumps(arguments)}}}'
        return f"{dialect.prefix}{body}{dialect.suffix}"

    weather, now = written("weather", {"city": "Oslo"}), written("now", {})
    both = weather + dialect.separator + now
    one = dialect.grammar(TOOLS, parallel=False)
    several = dialect.grammar(TOOLS, parallel=True)
    for text, in_one, in_several in [
        (weather, True, True),
        (now, True, True),
        (both, False, True),
        (written("weather", {}), False, False),
        (written("weather", {"city": 3}), False, False),
        (written("other", {}), False, False),
        ("Well, " + now, False, False),
        ("", False, False),
    ]:
        assert accepts(vocabulary, demo_model, one, text) is in_one
        assert accepts(vocabulary, demo_model, several, text) is in_several
    expected = [("weather", {"city": "Oslo"}), ("now", {})]
    assert parse(dialect.parser(), cut(both, [3])) == ("", expected)


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        (None, HERMES),
        ("{{ messages }}", HERMES),
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("{% if tools %}<|python_tag|>{% endif %}", LLAMA3),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", None),
    ],
)
def test_the_template_tells_how_calls_are_written(
    template: str | None, dialect: Dialect | None
) -> None:
    assert dialect_named("auto", template) is dialect
    assert dialect_named("llama3_json", template) is LLAMA3


def test_templates_without_tools_get_them_in_the_system_message() -> None:
    tools = [tool.for_template() for tool in TOOLS]
    calls = [{"id": "1", "type": "function", "function": {"name": "now", "arguments": {}}}]
    told = with_tools(
        [
            {"role": "user", "content": "When?"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "noon", "tool_call_id": "1"},
        ],
        tools,
    )
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    for tool in TOOLS:
        assert tool.function.name in told[0]["content"]
    _, found = parse(HERMES.parser(), [told[2]["content"]])
    assert found == [("now", {})]
    assert "noon" in told[3]["content"]
    [system, *_] = with_tools([{"role": "system", "content": "Be brief."}], tools)
    assert system["content"].startswith("Be brief.\n")
