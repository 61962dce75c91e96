"""/v1/responses: the same generation as chat's, asked for and shown in other words."""

import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from dualpace.core.request import FinishReason
from dualpace.gateway.choices import Delta, IndexedCall
from dualpace.gateway.replies.common import ReplyOptions
from dualpace.gateway.replies.response_items import OutputItems
from dualpace.gateway.text.model import ServedModel
from dualpace.gateway.tools.calls import ToolCall
from dualpace.testing.fake_backend import End, Pause, always
from tests.unit.gateway.conftest import ANSWER, EOS, LiveServer, Serve, ids_of

PATH = "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class City(BaseModel):
    city: str


def ask(server: LiveServer, given: Any = "Hi", **fields: Any) -> Any:
    response = server.post(PATH, {"input": given, **fields})
    assert response.status_code == 200, response.text
    # The official client reads leniently; its types tell what must be there.
    Response.model_validate(response.json())
    return response.json()


def events_of(server: LiveServer, given: Any = "Hi", **fields: Any) -> list[Any]:
    response = server.post(PATH, {"input": given, "stream": True, **fields})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for text in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = text.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def same_prompt(server: LiveServer, given: Any, messages: Any, **fields: Any) -> bool:
    """Whether both routes ask the engines for the same, but for the seed."""
    ask(server, given, seed=5, **fields)
    chat_fields = {"tools": [CHAT_TOOL]} if "tools" in fields else {}
    chat = {"messages": messages, "seed": 5, **chat_fields}
    assert server.post("/v1/chat/completions", chat).status_code == 200
    first, second = server.backend.generations[-2:]
    return first.prompt == second.prompt and first.params == second.params


def call_text(city: str) -> str:
    body = {"name": "weather", "arguments": {"city": city}}
    return f"<tool_call>\n{json.dumps(body)}\n</tool_call>"


def test_text_comes_back_with_what_it_cost(server: LiveServer) -> None:
    response = ask(server, metadata={"a": "b"}, user="u", max_output_tokens=200, temperature=0.5)
    [message] = response["output"]
    [part] = message["content"]
    assert part["text"] == ANSWER
    assert (response["status"], message["status"]) == ("completed", "completed")
    assert response["id"].startswith("resp_")
    assert response["store"] is response["background"] is False
    assert response["metadata"] == {"a": "b"}
    assert response["temperature"] == 0.5
    usage = response["usage"]
    [generation] = server.backend.generations
    assert usage["input_tokens"] == len(generation.prompt)
    assert usage["output_tokens"] == generation.num_tokens
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert generation.params.max_tokens == 200


CALLS: list[dict[str, Any]] = [
    {"type": "function_call", "call_id": "1", "name": "weather", "arguments": '{"city": "Oslo"}'},
    {"type": "function_call", "call_id": "2", "name": "weather", "arguments": '{"city": "Rome"}'},
]
OUTPUTS: list[dict[str, Any]] = [
    {"type": "function_call_output", "call_id": "1", "output": "3"},
    {
        "type": "function_call_output",
        "call_id": "2",
        "output": [{"type": "input_text", "text": "20"}],
    },
]
CHAT_CALLS = [
    {"id": c["call_id"], "function": {"name": c["name"], "arguments": c["arguments"]}}
    for c in CALLS
]


@pytest.mark.parametrize(
    ("given", "fields", "messages"),
    [
        ("Hi", {}, [{"role": "user", "content": "Hi"}]),
        (
            "Hi",
            {"instructions": "Be brief."},
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        ),
        (
            [
                {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
                {"role": "user", "content": "a", "type": "message"},
                {
                    "role": "assistant",
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "b", "annotations": []}],
                },
                {"role": "user", "content": "c"},
            ],
            {},
            [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ],
        ),
        (
            [{"role": "user", "content": "Weather?"}, *CALLS, *OUTPUTS],
            {"tools": [TOOL]},
            [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "tool_calls": CHAT_CALLS},
                {"role": "tool", "tool_call_id": "1", "content": "3"},
                {"role": "tool", "tool_call_id": "2", "content": "20"},
            ],
        ),
        (
            [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": "Let me see."},
                *CALLS[:1],
                *OUTPUTS[:1],
            ],
            {},
            [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": "Let me see.", "tool_calls": CHAT_CALLS[:1]},
                {"role": "tool", "tool_call_id": "1", "content": "3"},
            ],
        ),
    ],
    ids=["text", "instructions", "messages", "calls", "a message with a call"],
)
def test_conversations_are_those_of_chat(
    server: LiveServer, given: Any, fields: dict[str, Any], messages: Any
) -> None:
    assert same_prompt(server, given, messages, **fields)


def test_fields_reach_the_engines_as_chats_do(server: LiveServer) -> None:
    shared = {
        "temperature": 0.3, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 5, "priority": -2,
        "stop_token_ids": [9], "ignore_eos": True, "logit_bias": {"3": 1}, "min_tokens": 2,
        "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.2,
    }  # fmt: skip
    limit = {"max_output_tokens": 33}
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    ask(server, "Hi", **shared, **limit, text={"format": form})
    chat_form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert server.chat("Hi", **shared, max_tokens=33, response_format=chat_form).is_success
    first, second = server.backend.generations
    assert first.params == second.params
    assert first.params.sampling.grammar


def test_a_stream_tells_of_the_same_response(server: LiveServer) -> None:
    whole = ask(server)
    events = events_of(server)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert deltas > 3
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(e["delta"] for e in events if "delta" in e) == ANSWER
    assert events[0]["response"]["output"] == []
    last = events[-1]["response"]
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert last["usage"] == whole["usage"]
    ids = {e["item_id"] for e in events if "item_id" in e}
    assert ids == {last["output"][0]["id"]}
    assert {e["response"]["id"] for e in events if "response" in e} == {last["id"]}


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_makes_a_response_incomplete(server: LiveServer, stream: bool) -> None:
    if stream:
        last = events_of(server, max_output_tokens=3)[-1]
        assert last["type"] == "response.incomplete"
        response = last["response"]
    else:
        response = ask(server, max_output_tokens=3)
    assert response["status"] == response["output"][0]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert ANSWER.startswith(response["output"][0]["content"][0]["text"])
    assert response["usage"]["output_tokens"] == 3


def test_an_answer_of_nothing_is_a_message_without_text(serve: Serve) -> None:
    server = serve(always(EOS))
    [message] = ask(server)["output"]
    assert message["content"][0]["text"] == ""
    assert events_of(server)[-1]["response"]["output"][0]["content"] == message["content"]


def test_log_probabilities_are_included_on_demand(server: LiveServer) -> None:
    asked = {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"]}
    response = ask(server, **asked, top_logprobs=2)
    [part] = response["output"][0]["content"]
    assert len(part["logprobs"]) == response["usage"]["output_tokens"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    events = events_of(server, **asked, top_logprobs=2)
    done = next(e for e in events if e["type"] == "response.output_text.done")
    assert done["logprobs"] == part["logprobs"]
    streamed = [e for event in events if "delta" in event for e in event["logprobs"]]
    assert streamed == part["logprobs"][: len(streamed)]
    assert not ask(server)["output"][0]["content"][0]["logprobs"]


def test_calls_are_items_in_the_order_they_came(serve: Serve, demo_model: ServedModel) -> None:
    text = "Let me see. " + call_text("Oslo") + "\n" + call_text("Rome")
    server = serve(always(*ids_of(demo_model, text), EOS))
    response = ask(server, tools=[TOOL])
    assert [item["type"] for item in response["output"]] == ["message", *["function_call"] * 2]
    assert response["output"][0]["content"][0]["text"] == "Let me see."
    calls = response["output"][1:]
    assert [json.loads(call["arguments"]) for call in calls] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert len({call["call_id"] for call in calls}) == 2
    events = events_of(server, tools=[TOOL])
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert [(i["type"], i.get("arguments")) for i in done] == [
        (i["type"], i.get("arguments")) for i in response["output"]
    ]
    arguments = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert [e["output_index"] for e in arguments] == [1, 2]


def test_x_dualpace_tells_who_generated(server: LiveServer) -> None:
    response = ask(server, x_dualpace=True)
    tokens = response["x_dualpace"]["tokens"]
    assert sum(tokens.values()) == response["usage"]["output_tokens"]
    assert "x_dualpace" not in ask(server)


def message(content: Any, role: Any = "user") -> list[Any]:
    return [{"role": role, "content": content}]


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "invalid_type"),
    ({"input": 3}, "input", "invalid_type"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": [3]}, "input[0]", "invalid_type"),
    ({"input": [3] * 4097}, "input", "invalid_value"),
    ({"input": "x", "tools": [3] * 129}, "tools", "invalid_value"),
    ({"input": [{}]}, "input[0]", "missing_required_parameter"),
    ({"input": [{"role": "user"}]}, "input[0]", "missing_required_parameter"),
    ({"input": message("x", "tool")}, "input[0].role", "invalid_value"),
    ({"input": message([{"type": "input_image"}])}, "input[0].content", "unsupported_value"),
    ({"input": message([{"type": "input_text"}])}, "input[0].content", "invalid_type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "unsupported_value"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type", "unsupported_value"),
    ({"input": [{"type": ["message"]}]}, "input[0].type", "unsupported_value"),
    ({"input": [{"type": "function_call"}]}, "input[0]", "missing_required_parameter"),
    ({"input": [CALLS[0] | {"arguments": "{"}]}, "input", "invalid_value"),
    ({"input": "x " * 3000}, "input", "context_length_exceeded"),
    ({"instructions": 3}, "instructions", "invalid_type"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 10**30}, "max_output_tokens", "context_length_exceeded"),
    ({"min_tokens": 5, "max_output_tokens": 4}, "min_tokens", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"store": True}, "store", "unsupported_parameter"),
    ({"background": True}, "background", "unsupported_parameter"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
    ({"max_tokens": 3}, "max_tokens", "unsupported_parameter"),
    ({"n": 2}, "n", "unsupported_parameter"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
    ({"tools": [TOOL, TOOL]}, "tools", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice",
     "invalid_value"),
    ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice", "invalid_value"),
    ({"tools": [TOOL], "text": {"format": {"type": "json_object"}}}, "tools", "invalid_value"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "invalid_value"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format", "invalid_value"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": False}}}, "text.format",
     "invalid_value"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "invalid_value"),
    ({"include": ["everything"]}, "include", "invalid_value"),
    ({"include": [["x"]]}, "include", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"metadata": {"a": 1}}, "metadata", "invalid_type"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_value"),
    ({"metadata": {"a": "x" * 513}}, "metadata", "invalid_value"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options", "invalid_value"),
]  # fmt: skip


def test_faults_are_told_in_the_words_of_this_route(server: LiveServer) -> None:
    for fields, param, code in FAULTS:
        response = server.post(PATH, {"input": "Hi", **fields})
        assert response.status_code == 400, (fields, response.text)
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param, code), (fields, error)
        assert error["message"].startswith(f"{param}: ")
    assert not server.backend.generations


def test_what_changes_nothing_passes(server: LiveServer) -> None:
    ask(
        server, store=False, background=False, previous_response_id=None, conversation=None,
        truncation="disabled", tools=[], include=[], text={"format": {"type": "text"}},
        reasoning={"effort": None, "summary": "auto"}, service_tier="auto", metadata=None,
        prompt_cache_key="x", safety_identifier="y", parallel_tool_calls=None, n=1,
    )  # fmt: skip


def test_a_form_that_engines_refuse_is_the_text_formats_fault(server: LiveServer) -> None:
    server.backend.script = always(End(FinishReason.REFUSED, "too large"))
    form = {"type": "json_schema", "name": "x", "schema": {}}
    for stream in (False, True):
        body = {"input": "x", "text": {"format": form}, "stream": stream}
        response = server.post(PATH, body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "text.format"


def test_a_failure_amid_a_stream_is_a_failed_response(
    client: openai.OpenAI, server: LiveServer
) -> None:
    server.backend.script = always(
        1000, 1001, Pause(0.02), End(FinishReason.ERROR, "The device is gone.")
    )
    events = events_of(server)
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": "server_error", "message": "The device is gone."}
    assert failed["output"][0]["status"] == "incomplete"
    with client.responses.create(model="demo", input="x", stream=True) as stream:
        [*_, last] = stream
    assert last.type == "response.failed"


def test_a_failure_after_silence_and_before_the_first_token_is_raised(serve: Serve) -> None:
    server = serve(always(Pause(0.2), End(FinishReason.ERROR, "Gone.")), ping_interval_s=0.03)
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        stream = client.responses.create(model="demo", input="x", stream=True)
        with pytest.raises(openai.APIError, match="Gone"):
            list(stream)


def test_the_official_client_creates(client: openai.OpenAI) -> None:
    response = client.responses.create(model="demo", input="Hi", instructions="Be brief.")
    assert response.output_text == ANSWER
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    with pytest.raises(openai.BadRequestError, match="no response is kept") as caught:
        client.responses.create(model="demo", input="Hi", previous_response_id=response.id)
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_the_official_client_streams(client: openai.OpenAI) -> None:
    text = ""
    with client.responses.stream(model="demo", input="Hi") as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
        assert stream.get_final_response().output_text == text == ANSWER


def test_the_official_client_parses(serve: Serve, demo_model: ServedModel) -> None:
    server = serve(always(*ids_of(demo_model, '{"city": "Oslo"}'), EOS))
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        parsed = client.responses.parse(model="demo", input="Where?", text_format=City)
        assert parsed.output_parsed == City(city="Oslo")
        with client.responses.stream(model="demo", input="Where?", text_format=City) as stream:
            assert stream.get_final_response().output_parsed == City(city="Oslo")
    assert all(g.params.sampling.grammar for g in server.backend.generations)


def test_the_official_client_calls_tools(serve: Serve, demo_model: ServedModel) -> None:
    server = serve(always(*ids_of(demo_model, call_text("Oslo")), EOS))
    tools: Any = [openai.pydantic_function_tool(City, name="weather")]
    tools = [{"type": "function", **tool["function"]} for tool in tools]
    history: list[Any] = [{"role": "user", "content": "Weather?"}]
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        whole = client.responses.create(model="demo", input=history, tools=tools)
        with client.responses.stream(model="demo", input=history, tools=tools) as stream:
            streamed = stream.get_final_response()
        for response in (whole, streamed):
            [call] = response.output
            assert call.type == "function_call"
            assert json.loads(call.arguments) == {"city": "Oslo"}
        history += [item.model_dump(exclude_none=True) for item in whole.output]
        history.append({"type": "function_call_output", "call_id": "1", "output": "3 degrees"})
        client.responses.create(model="demo", input=history, tools=tools)
    prompt = demo_model.tokenizer.decode(list(server.backend.generations[-1].prompt))
    assert '"city": "Oslo"' in prompt
    assert "3 degrees" in prompt


PIECES = st.lists(st.tuples(st.text(max_size=3), st.integers(0, 2)), max_size=6)


@given(PIECES)
def test_events_tell_what_the_items_are(pieces: list[tuple[str, int]]) -> None:
    options = ReplyOptions(
        reply_id="r", model="m", token_text=None, logprobs=None,  # type: ignore[arg-type]
        prompt_logprobs=None, return_token_ids=False, tokens_as_ids=False, x_dualpace=False,
    )  # fmt: skip
    items = OutputItems(options)
    events: list[dict[str, Any]] = []
    for text, calls in pieces:
        if not text and not calls:
            continue  # nothing became visible
        indexed = tuple(IndexedCall(i, ToolCall("f", "{}")) for i in range(calls))
        events += items.push(Delta(text, (), indexed))
    events += items.close("completed")
    done = items.so_far("completed")
    told: dict[int, str] = {}
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(told)
            told[event["output_index"]] = ""
        elif event["type"].endswith(".delta"):
            told[event["output_index"]] += event["delta"]
        elif event["type"] == "response.output_item.done":
            assert event["item"] == done[event["output_index"]]
    shown = [i["content"][0]["text"] if "content" in i else i["arguments"] for i in done]
    assert list(told.values()) == shown
    text = "".join(i["content"][0]["text"] for i in done if "content" in i)
    assert text == "".join(piece for piece, _ in pieces)
    assert sum(i["type"] == "function_call" for i in done) == sum(n for _, n in pieces)
    assert done
