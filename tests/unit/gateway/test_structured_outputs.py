"""What form the text must have: the grammar that reaches the engines, and what they refuse."""

import json
from dataclasses import replace
from typing import Any

import openai
import pytest
from llguidance import LLMatcher, LLTokenizer

from dualpace.core.request import FinishReason
from dualpace.gateway.text.model import ServedModel
from dualpace.testing.fake_backend import End, always
from tests.unit.gateway.conftest import LiveServer, Serve, chunks_of, ids_of

EOS = 2
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "size": {"enum": ["S", "L"]}},
    "required": ["city"],
    "additionalProperties": False,
}
UNION = {"oneOf": [{"type": "integer"}, {"type": "null"}]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def json_schema(schema: Any) -> dict[str, Any]:
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema, "strict": True},
        }
    }


@pytest.fixture(scope="module")
def vocabulary(demo_model: ServedModel) -> LLTokenizer:
    return LLTokenizer(demo_model.tokenizer.to_str(), eos_token=EOS)


@pytest.fixture
def server(serve: Serve) -> LiveServer:
    return serve(always(1000, EOS))


def grammar_of(server: LiveServer) -> str:
    adjustments = server.backend.generations[-1].params.sampling.adjustments
    return "" if adjustments is None else adjustments.grammar


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a": [1, null]}', "[1]"),
        (json_schema(SCHEMA), '{"city": "Å"}', '{"size": "S"}'),
        (json_schema(SCHEMA), '{\n  "city": "B",\n  "size": "L"\n}', '{"city": "B", "size": "M"}'),
        (json_schema(SCHEMA), '{ "city": "x"}', "{" + " " * 40 + '"city": "x"}'),
        (json_schema(UNION), "null", '"x"'),
        (json_schema(True), '"anything"', "anything"),
        (json_schema(None), '"anything"', "anything"),
        ({"structured_outputs": {"json_object": True}}, "{}", "3"),
        ({"structured_outputs": {"json": SCHEMA}}, '{"city":"x"}', "{}"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, '{"city":"x"}', "{}"),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            '{"city":"x"}',
            '{"city": "x"}',
        ),
        ({"structured_outputs": {"regex": r"\d{3}-[a-z]+"}}, "123-abc", "123-abc "),
        ({"structured_outputs": {"choice": ["yes", 'a "b"\n/', "yé"]}}, 'a "b"\n/', "no"),
        ({"structured_outputs": {"choice": ["yes", "yé"]}}, "yé", "yes."),
        ({"structured_outputs": {"grammar": 'root ::= "a" [0-9]+'}}, "a12", "a"),
        ({"structured_outputs": {"grammar": "start: /[ab]+/ \n"}}, "abba", "c"),
    ],
)
def test_forms_allow_what_they_should_and_no_more(
    server: LiveServer, vocabulary: LLTokenizer, fields: dict[str, Any], good: str, bad: str
) -> None:
    grammars = set()
    for send in (server.chat, server.complete):
        assert send("x", **fields).status_code == 200
        grammars.add(grammar_of(server))
    [grammar] = grammars
    for text, expected in ((good, True), (bad, False)):
        matcher = LLMatcher(vocabulary, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = ids_of(server.gateway.model, text)
        taken = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert taken is expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (json_schema(SCHEMA), "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tools"),
    ],
)
def test_a_form_that_the_engines_refuse_is_a_400_and_names_its_field(
    serve: Serve, fields: dict[str, Any], param: str, stream: bool
) -> None:
    """Fail closed: never an unconstrained text, never a 200 that turns bad."""
    server = serve(always(End(FinishReason.REFUSED, "the grammar cannot be used: too large")))
    response = server.chat("x", stream=stream, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert "too large" in error["message"]
    server.assert_at_rest()


@pytest.mark.parametrize(
    ("choice", "constrained"),
    [
        (None, False),
        ("auto", False),
        ("none", False),
        ("required", True),
        ({"type": "function", "function": {"name": "weather"}}, True),
    ],
)
def test_calls_are_forced_only_where_asked(
    server: LiveServer, choice: Any, constrained: bool
) -> None:
    assert server.chat("x", tools=[WEATHER], tool_choice=choice).status_code == 200
    assert bool(grammar_of(server)) is constrained
    prompt = server.gateway.model.tokenizer.decode(list(server.backend.generations[-1].prompt))
    assert ("weather" in prompt) is (choice != "none")


def call_text(city: str) -> str:
    body = {"name": "weather", "arguments": {"city": city}}
    return f"<tool_call>\n{json.dumps(body)}\n</tool_call>"


def test_calls_whole_and_streamed_are_the_same(serve: Serve, demo_model: ServedModel) -> None:
    text = f"Let me see.\n{call_text('Oslo')}\n{call_text('Rome')}"
    server = serve(always(*ids_of(demo_model, text), EOS))
    fields: dict[str, Any] = {"tools": [WEATHER], "logprobs": True, "return_token_ids": True}
    [whole] = server.chat("x", **fields).json()["choices"]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == "Let me see."
    calls = [call["function"] for call in whole["message"]["tool_calls"]]
    assert [json.loads(call["arguments"]) for call in calls] == [{"city": "Oslo"}, {"city": "Rome"}]
    chunks = chunks_of(server.chat("x", stream=True, **fields))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    streamed = [call for c in choices for call in c["delta"].get("tool_calls", ())]
    assert [call["index"] for call in streamed] == [0, 1]
    assert len({call["id"] for call in streamed}) == 2
    assert [call["function"] for call in streamed] == calls
    assert "".join(c["delta"].get("content") or "" for c in choices) == "Let me see."
    assert choices[-1]["finish_reason"] == "tool_calls"
    ids = [i for c in choices for i in c.get("token_ids", ())]
    assert ids == whole["token_ids"] == [*ids_of(demo_model, text), EOS]
    entries = [e for c in choices for e in (c["logprobs"] or {}).get("content", ())]
    assert entries == whole["logprobs"]["content"]


def test_without_parallel_calls_the_first_is_the_only_one(
    serve: Serve, demo_model: ServedModel
) -> None:
    text = call_text("Oslo") + call_text("Rome")
    server = serve(always(*ids_of(demo_model, text), EOS))
    [choice] = server.chat("x", tools=[WEATHER], parallel_tool_calls=False).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    assert choice["message"]["content"] is None


def test_a_call_that_is_cut_off_is_text_and_no_call(serve: Serve, demo_model: ServedModel) -> None:
    ids = ids_of(demo_model, call_text("Oslo"))
    server = serve(always(*ids))
    [choice] = server.chat("x", tools=[WEATHER], max_tokens=len(ids) - 3).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]
    assert call_text("Oslo").startswith(choice["message"]["content"])


def test_a_model_that_calls_in_an_unknown_form_refuses_tools(
    serve: Serve, demo_model: ServedModel
) -> None:
    server = serve(always(1000, EOS), model=replace(demo_model, tool_dialect=None))
    response = server.chat("x", tools=[WEATHER])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "unsupported_model"
    assert server.chat("x", tools=[WEATHER], tool_choice="none").status_code == 200


def test_the_official_client_reads_tool_calls(serve: Serve, demo_model: ServedModel) -> None:
    server = serve(always(*ids_of(demo_model, call_text("Oslo")), EOS))
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        tools: Any = [WEATHER]
        messages: Any = [{"role": "user", "content": "Weather in Oslo?"}]
        whole = client.chat.completions.create(model="demo", messages=messages, tools=tools)
        with client.chat.completions.stream(model="demo", messages=messages, tools=tools) as stream:
            streamed = stream.get_final_completion()
        for completion in (whole, streamed):
            calls = completion.choices[0].message.tool_calls
            assert calls
            assert calls[0].type == "function"
            assert json.loads(calls[0].function.arguments) == {"city": "Oslo"}
        messages += [
            whole.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": "1", "content": "3"},
        ]
        client.chat.completions.create(model="demo", messages=messages, tools=tools)
    prompt = demo_model.tokenizer.decode(list(server.backend.generations[-1].prompt))
    assert '"city": "Oslo"' in prompt
