"""Every way to ask wrongly, over HTTP: the status, the field, and an envelope that clients read."""

import json
import math
from typing import Any
from unittest.mock import Mock

import pytest

from dualpace.testing.fake_backend import always
from tests.unit.gateway.conftest import LiveServer, Serve

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EOS = 2
NESTED = "[" * 100_000
TOOL = {"type": "function", "function": {"name": "f"}}
PARTS = [{"type": "text", "text": "a"}]
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}

BOTH: list[tuple[str, Any, str]] = [
    ("model", 3, "invalid_type"),
    ("max_tokens", -1, "invalid_value"),
    ("max_tokens", 1.5, "invalid_type"),
    ("max_tokens", True, "invalid_type"),
    ("max_tokens", "16", "invalid_type"),
    ("max_tokens", math.nan, "invalid_type"),
    ("max_tokens", 10**30, "context_length_exceeded"),
    ("max_tokens", 10**4299, "context_length_exceeded"),
    ("max_tokens", 10**4300 - 1, "context_length_exceeded"),
    ("temperature", -0.1, "invalid_value"),
    ("temperature", 2.1, "invalid_value"),
    ("temperature", math.nan, "invalid_value"),
    ("temperature", math.inf, "invalid_value"),
    ("temperature", -math.inf, "invalid_value"),
    ("temperature", True, "invalid_type"),
    ("temperature", "hot", "invalid_type"),
    ("temperature", [], "invalid_type"),
    ("temperature", 10**400, "invalid_type"),
    ("top_p", 0, "invalid_value"),
    ("top_p", 1.01, "invalid_value"),
    ("top_p", math.nan, "invalid_value"),
    ("top_p", False, "invalid_type"),
    ("top_k", -2, "invalid_value"),
    ("top_k", 1.0, "invalid_type"),
    ("min_p", -0.01, "invalid_value"),
    ("min_p", 1.01, "invalid_value"),
    ("min_p", math.nan, "invalid_value"),
    ("seed", 2**63, "invalid_value"),
    ("seed", -(2**63) - 1, "invalid_value"),
    ("seed", 0.5, "invalid_type"),
    ("seed", True, "invalid_type"),
    ("n", 0, "invalid_value"),
    ("n", -3, "invalid_value"),
    ("n", "2", "invalid_type"),
    ("n", True, "invalid_type"),
    ("n", 129, "invalid_value"),
    ("n", 10**4300 - 1, "invalid_value"),
    ("stop", "", "invalid_value"),
    ("stop", ["a", ""], "invalid_value"),
    ("stop", [1], "invalid_type"),
    ("stop", {"a": 1}, "invalid_type"),
    ("stop", ["x"] * 65, "invalid_value"),
    ("stop", ["x" * 5000], "invalid_value"),
    ("stop", "\ud800", "invalid_value"),
    ("stop_token_ids", [True], "invalid_type"),
    ("stop_token_ids", ["2"], "invalid_type"),
    ("stop_token_ids", 2, "invalid_type"),
    ("stop_token_ids", [-1], "invalid_value"),
    ("stop_token_ids", [49152], "invalid_value"),
    ("stop_token_ids", list(range(100, 140)), "invalid_value"),
    ("ignore_eos", 1, "invalid_type"),
    ("stream", "yes", "invalid_type"),
    ("stream_options", {"include_usage": True}, "invalid_value"),
    ("return_token_ids", "x", "invalid_type"),
    ("x_dualpace", {}, "invalid_type"),
    ("user", 7, "invalid_type"),
    ("request_id", "", "invalid_value"),
    ("request_id", "a b", "invalid_value"),
    ("request_id", "a\r\nb", "invalid_value"),
    ("request_id", "x" * 129, "invalid_value"),
    ("logprobs", "x", "invalid_type"),
    ("presence_penalty", 2.01, "invalid_value"),
    ("presence_penalty", True, "invalid_type"),
    ("frequency_penalty", -2.01, "invalid_value"),
    ("frequency_penalty", math.nan, "invalid_value"),
    ("frequency_penalty", "x", "invalid_type"),
    ("repetition_penalty", 0, "invalid_value"),
    ("repetition_penalty", math.inf, "invalid_value"),
    ("logit_bias", [1], "invalid_type"),
    ("logit_bias", {"x": 1}, "invalid_value"),
    ("logit_bias", {"1.5": 1}, "invalid_value"),
    ("logit_bias", {"5": "x"}, "invalid_type"),
    ("logit_bias", {"5": True}, "invalid_type"),
    ("logit_bias", {"5": 101}, "invalid_value"),
    ("logit_bias", {"5": math.nan}, "invalid_value"),
    ("logit_bias", {"5": math.inf}, "invalid_value"),
    ("logit_bias", {"-1": 1}, "invalid_value"),
    ("logit_bias", {"49152": 1}, "invalid_value"),
    ("logit_bias", {str(i): 1 for i in range(1025)}, "invalid_value"),
    ("allowed_token_ids", [], "invalid_value"),
    ("allowed_token_ids", [49152], "invalid_value"),
    ("allowed_token_ids", [-1], "invalid_value"),
    ("allowed_token_ids", ["1"], "invalid_type"),
    ("allowed_token_ids", list(range(1025)), "invalid_value"),
    ("min_tokens", -1, "invalid_value"),
    ("min_tokens", 1.0, "invalid_type"),
    ("prompt_logprobs", 21, "invalid_value"),
    ("prompt_logprobs", -1, "invalid_value"),
    ("prompt_logprobs", True, "invalid_type"),
    ("priority", 2**31, "invalid_value"),
    ("priority", "high", "invalid_type"),
    ("truncate_prompt_tokens", 0, "invalid_value"),
    ("truncate_prompt_tokens", -2, "invalid_value"),
    ("include_stop_str_in_output", 1, "invalid_type"),
    ("skip_special_tokens", "no", "invalid_type"),
    ("return_tokens_as_token_ids", 0, "invalid_type"),
    ("response_format", "text", "invalid_type"),
    ("response_format", {}, "unsupported_value"),
    ("response_format", {"type": "grammar"}, "unsupported_value"),
    ("response_format", {"type": "json_schema"}, "invalid_value"),
    ("response_format", {"type": "json_object", "json_schema": {"name": "x"}}, "invalid_value"),
    ("response_format", {"type": "structural_tag"}, "unsupported_value"),
    ("structured_outputs", {}, "invalid_value"),
    ("structured_outputs", [], "invalid_type"),
    ("structured_outputs", {"json": "{"}, "invalid_value"),
    ("structured_outputs", {"json": "[1]"}, "invalid_value"),
    ("structured_outputs", {"json": False}, "invalid_value"),
    ("structured_outputs", {"json": {}, "regex": "a"}, "invalid_value"),
    ("structured_outputs", {"grammar": "root ::= ((("}, "invalid_value"),
    ("add_special_tokens", 1, "invalid_type"),
]

TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("stream_options", {"stream_options": {}, "stream": False}),
    ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
    ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
    (
        "structured_outputs",
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
    ),
    ("structured_outputs", {"structured_outputs": {"regex": "a" * (1 << 16)}}),
    (
        "response_format",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"description": "x" * (1 << 16)}},
            }
        },
    ),
]

TOGETHER_CHAT: list[tuple[str, dict[str, Any]]] = [
    ("top_logprobs", {"top_logprobs": 2}),
    ("top_logprobs", {"top_logprobs": 2, "logprobs": False}),
    ("min_tokens", {"min_tokens": 9, "max_completion_tokens": 8}),
    ("tool_choice", {"tool_choice": "auto"}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    (
        "tool_choice",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    ),
    ("tools", {"tools": [TOOL], "response_format": {"type": "json_object"}}),
    ("tools", {"tools": [TOOL], "structured_outputs": {"regex": "a"}, "tool_choice": "required"}),
    ("continue_final_message", {"continue_final_message": True}),
    ("continue_final_message", {"continue_final_message": True, "add_generation_prompt": True}),
    (
        "continue_final_message",
        {
            "continue_final_message": True,
            "messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}],
        },
    ),
]

TOGETHER_COMPLETIONS: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 0, "echo": False}),
]

UNSUPPORTED: list[tuple[str, Any]] = [
    ("structural_tag", "x"),
    ("best_of", 5),
    ("guided_json", {}),
    ("guided_regex", "a*"),
    ("guided_anything_new", 1),
    ("use_beam_search", True),
    ("length_penalty", 2),
    ("bad_words", ["x"]),
    ("logits_processors", ["x"]),
    ("kv_transfer_params", {"x": 1}),
]

ONLY_CHAT: list[tuple[str, Any, str]] = [
    ("max_tokens", 0, "invalid_value"),
    ("chat_template_kwargs", [], "invalid_type"),
    ("messages", None, "invalid_type"),
    ("messages", [], "invalid_value"),
    ("messages", "Hi", "invalid_type"),
    ("messages", {}, "invalid_type"),
    ("max_completion_tokens", 0, "invalid_value"),
    ("max_completion_tokens", 5000, "context_length_exceeded"),
    ("max_completion_tokens", 10**4300 - 1, "context_length_exceeded"),
    ("logprobs", 1, "invalid_type"),
    ("top_logprobs", 21, "invalid_value"),
    ("top_logprobs", -1, "invalid_value"),
    ("top_logprobs", True, "invalid_type"),
    ("top_logprobs", 3, "invalid_value"),
    ("tools", [], "invalid_value"),
    ("tools", {}, "invalid_type"),
    ("tools", [TOOL, TOOL], "invalid_value"),
    ("tools", [{"type": "function", "function": {"name": "a b"}}], "invalid_value"),
    ("tools", [{"type": "function", "function": {"name": "a" * 65}}], "invalid_value"),
    ("tool_choice", "any", "invalid_value"),
    ("tool_choice", {"type": "function"}, "invalid_value"),
    ("tool_choice", {"type": "custom", "function": {"name": "f"}}, "invalid_value"),
    ("parallel_tool_calls", 1, "invalid_type"),
    ("functions", [{}], "unsupported_parameter"),
    ("function_call", "auto", "unsupported_parameter"),
    ("modalities", ["text", "audio"], "unsupported_parameter"),
    ("reasoning_effort", "low", "unsupported_model"),
    ("reasoning_effort", "much", "invalid_value"),
    ("documents", [{"text": "x"}], "unsupported_model"),
    ("documents", "x", "invalid_type"),
    ("verbosity", "low", "unsupported_parameter"),
    ("chat_template", "{{ x }}", "unsupported_parameter"),
    ("echo", True, "unsupported_parameter"),
]

ONLY_COMPLETIONS: list[tuple[str, Any, str]] = [
    ("max_tokens", 0, "invalid_value"),
    ("prompt", None, "invalid_type"),
    ("prompt", 5, "invalid_type"),
    ("prompt", {}, "invalid_type"),
    ("prompt", "", "invalid_value"),
    ("prompt", [], "invalid_value"),
    ("prompt", [[]], "invalid_value"),
    ("prompt", ["a", ""], "invalid_value"),
    ("prompt", ["a", 1], "invalid_type"),
    ("prompt", [1, "a"], "invalid_type"),
    ("prompt", [1, True], "invalid_type"),
    ("prompt", [1, 2.0], "invalid_type"),
    ("prompt", [[1], 2], "invalid_type"),
    ("prompt", [[1], "a"], "invalid_type"),
    ("prompt", [[[1]]], "invalid_type"),
    ("prompt", [math.nan], "invalid_type"),
    ("prompt", [49152], "invalid_value"),
    ("prompt", [-1], "invalid_value"),
    ("prompt", [[1], [10**30]], "invalid_value"),
    ("prompt", "\udc00", "invalid_value"),
    ("prompt", [1] * 2048, "context_length_exceeded"),
    ("prompt", "word " * 3000, "context_length_exceeded"),
    ("logprobs", True, "invalid_type"),
    ("logprobs", 21, "invalid_value"),
    ("logprobs", -1, "invalid_value"),
    ("suffix", "x", "unsupported_parameter"),
    ("documents", [{"text": "x"}], "unsupported_parameter"),
    ("best_of", 2, "unsupported_parameter"),
]

MESSAGES: list[tuple[str, list[Any]]] = [
    ("messages[0]", ["Hi"]),
    ("messages[0].role", [{"content": "x"}]),
    ("messages[0].role", [{"role": "robot", "content": "x"}]),
    ("messages[0].role", [{"role": 3, "content": "x"}]),
    ("messages[1].content", [{"role": "user", "content": "x"}, {"role": "user", "content": 5}]),
    ("messages", [{"role": "user"}]),
    ("messages", [{"role": "assistant", "content": None}]),
    ("messages[0].content", [{"role": "user", "content": []}]),
    ("messages[0].content", [{"role": "user", "content": ["x"]}]),
    ("messages[0].content", [{"role": "user", "content": [{"type": "text"}]}]),
    ("messages[0].content", [{"role": "user", "content": [{"type": "text", "text": 1}]}]),
    (
        "messages[0].content",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    ),
    ("messages[0].name", [{"role": "user", "content": "x", "name": 3}]),
    ("messages[0].tool_calls", [{"role": "user", "content": "x", "tool_calls": [CALL]}]),
    (
        "messages[0].tool_calls[0].function",
        [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
    ),
]


@pytest.fixture
def server(serve: Serve) -> LiveServer:
    return serve(always(EOS))


def assert_error(response: Any, status: int, param: str | None, code: str) -> str:
    """Check the envelope, that it is short, and that it names the field; return the message."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error = body["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert param is None or param in error["message"]
    assert len(response.content) < 2000
    return str(error["message"])


def send(server: LiveServer, path: str, fields: dict[str, Any]) -> Any:
    base: dict[str, Any] = {"prompt": "Hi"}
    if path == CHAT:
        base = {"messages": [{"role": "user", "content": "Hi"}]}
    body = json.dumps({**base, **fields})  # NaN and Infinity as Python writes them
    return server.client.post(path, content=body, headers={"content-type": "application/json"})


def test_fields_of_both_routes(server: LiveServer) -> None:
    for path in (CHAT, COMPLETIONS):
        for name, value, code in BOTH:
            assert_error(send(server, path, {name: value}), 400, name, code)


def test_fields_of_chat(server: LiveServer) -> None:
    for name, value, code in ONLY_CHAT:
        assert_error(send(server, CHAT, {name: value}), 400, name, code)


def test_fields_of_completions(server: LiveServer) -> None:
    for name, value, code in ONLY_COMPLETIONS:
        assert_error(send(server, COMPLETIONS, {name: value}), 400, name, code)


def test_fields_that_do_not_go_together(server: LiveServer) -> None:
    for path, own in ((CHAT, TOGETHER_CHAT), (COMPLETIONS, TOGETHER_COMPLETIONS)):
        for name, fields in (*TOGETHER, *own):
            assert_error(send(server, path, fields), 400, name, "invalid_value")


def test_messages(server: LiveServer) -> None:
    for param, messages in MESSAGES:
        response = send(server, CHAT, {"messages": messages})
        code = response.json()["error"]["code"]
        assert code in {
            "invalid_type",
            "invalid_value",
            "missing_required_parameter",
            "unsupported_value",
        }
        assert_error(response, 400, param, code)


def test_what_is_not_supported_yet_is_said_so(server: LiveServer) -> None:
    for path in (CHAT, COMPLETIONS):
        for name, value in UNSUPPORTED:
            response = send(server, path, {name: value})
            message = assert_error(response, 400, name, "unsupported_parameter")
            assert "not supported" in message


def test_values_that_change_nothing_pass(server: LiveServer) -> None:
    neutral: dict[str, Any] = {
        "response_format": {"type": "text"},
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "best_of": None,
        "structured_outputs": None,
        "guided_json": None,
        "skip_special_tokens": True,
        "priority": 0,
        "stop": None,
        "stop_token_ids": None,
        "n": None,
        "stream": None,
        "temperature": None,
        "seed": None,
        "stream_options": None,
        "user": "someone",
        "metadata": {"a": "b"},
        "a_field_that_nobody_knows": {"deep": [math.nan]},
    }
    neutral["spaces_between_special_tokens"] = False
    chat: dict[str, Any] = {
        "reasoning_effort": "none",
        "documents": [],
        "verbosity": "medium",
        "tools": None,
        "tool_choice": "none",
        "add_special_tokens": False,
        "logprobs": False,
    }
    completion = {"suffix": "", "best_of": 1, "echo": False, "add_special_tokens": True}
    assert send(server, CHAT, {**neutral, **chat}).status_code == 200
    assert send(server, COMPLETIONS, {**neutral, **completion}).status_code == 200
    assert send(server, COMPLETIONS, {"n": 2, "best_of": 2}).status_code == 200


def test_fields_that_nobody_knows_are_refused_on_demand(serve: Serve) -> None:
    strict = serve(always(EOS), strict_fields=True)
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
        COMPLETIONS: {"prompt": "Hi"},
        "/v1/responses": {"input": "Hi"},
    }
    for path, body in bodies.items():
        assert strict.post(path, {**body, "seed": 1, "user": "someone"}).status_code == 200
        for name in ("temprature", "x" * 1000):
            response = strict.post(path, {**body, name: 1})
            assert_error(response, 400, name[:64], "unsupported_parameter")


def test_limits_themselves_are_allowed(server: LiveServer) -> None:
    fields: dict[str, Any] = {
        "temperature": 2,
        "top_p": 1,
        "top_k": -1,
        "min_p": 1,
        "seed": -(2**63),
        "n": 128,
        "stop": ["x"] * 64,
        "request_id": "x" * 128,
    }
    assert send(server, CHAT, fields).status_code == 200
    assert (
        send(server, COMPLETIONS, {**fields, "prompt": [49151], "logprobs": 20}).status_code == 200
    )
    assert send(server, CHAT, {"logprobs": True, "top_logprobs": 20}).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_required_fields_are_named(server: LiveServer, path: str) -> None:
    response = server.post(path, {"model": "demo"})
    name = "messages" if path == CHAT else "prompt"
    assert_error(response, 400, name, "missing_required_parameter")


def test_an_unknown_model(server: LiveServer) -> None:
    response = send(server, CHAT, {"model": "gpt-" + "9" * 1000})
    assert_error(response, 404, "model", "model_not_found")
    assert send(server, CHAT, {"model": "other-name"}).json()["model"] == "other-name"
    assert send(server, CHAT, {"model": None}).json()["model"] == "demo"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'prompt': 'x'}",
        b'{"prompt": "x"} trailing',
        b'"prompt"',
        b"[1]",
        b"null",
        b'{"prompt": "\xff"}',
        '{"prompt": "x"}'.encode("utf-16"),
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: ascii(body)[:30],
)
def test_bodies_that_are_no_json_object(server: LiveServer, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = server.client.post(COMPLETIONS, content=body, headers=headers)
    assert_error(response, 400, None, "invalid_json")


def test_many_faults_are_told_in_few_words(server: LiveServer) -> None:
    names = [name for name, *_ in BOTH if name not in {"request_id", "stream_options", "model"}]
    response = send(server, CHAT, {name: {"wrong": "x" * 10_000} for name in names})
    message = assert_error(response, 400, "temperature", "invalid_type")
    assert message.count(";") == 10
    assert message.endswith("more")
    assert "x" * 100 not in message


def test_a_long_list_of_faults_costs_no_more_than_one(server: LiveServer) -> None:
    response = send(server, CHAT, {"messages": [1] * 4000})
    assert_error(response, 400, "messages[0]", "invalid_type")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": PARTS}] * 4097,
        [{"role": "assistant", "content": PARTS, "tool_calls": [CALL] * 4096}],
    ],
)
def test_a_body_full_of_messages_is_not_looked_through(
    server: LiveServer, messages: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validating each would hold up every stream for seconds."""
    looked_at = Mock()
    monkeypatch.setattr("dualpace.gateway.protocol.content._part_text", looked_at)
    message = assert_error(
        send(server, CHAT, {"messages": messages}), 400, "messages", "invalid_value"
    )
    assert "4096" in message
    assert not looked_at.called


def test_what_was_sent_is_not_echoed_at_length(server: LiveServer) -> None:
    response = send(server, CHAT, {"messages": "secret " * 100})
    assert "secret" not in assert_error(response, 400, "messages", "invalid_type")
    response = send(server, COMPLETIONS, {"prompt": "secret " * 3000})
    assert "secret" not in response.text


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large(serve: Serve, chunked: bool) -> None:
    server = serve(always(EOS), max_body_bytes=1000)
    content: Any = b'{"prompt": "' + b"x" * 2000 + b'"}'
    headers = {"content-type": "application/json"}
    body: Any = iter([content[:500], content[500:]]) if chunked else content
    response = server.client.post(COMPLETIONS, content=body, headers=headers)
    assert_error(response, 413, None, "request_too_large")
    assert response.headers["connection"] == "close"
    assert server.complete("fine").status_code == 200


def test_other_content_types(server: LiveServer) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; x=y"):
        response = server.client.post(
            COMPLETIONS, content=b'{"prompt": "x"}', headers={"content-type": kind}
        )
        assert_error(response, 415, None, "unsupported_media_type")
    kind = "Application/JSON; charset=utf-8"
    response = server.client.post(
        COMPLETIONS, content=b'{"prompt": "x"}', headers={"content-type": kind}
    )
    assert response.status_code == 200


def test_unknown_routes_and_wrong_methods(server: LiveServer) -> None:
    assert_error(server.client.get("/v1/embeddings"), 404, None, "route_not_found")
    assert_error(server.client.get("/v1/chat/completions/"), 404, None, "route_not_found")
    response = server.client.get(CHAT)
    assert_error(response, 405, None, "method_not_allowed")
    assert response.headers["allow"] == "POST"
    assert_error(server.client.delete("/v1/models"), 405, None, "method_not_allowed")


def test_refused_requests_start_no_generation(server: LiveServer) -> None:
    for name, value, _ in BOTH:
        send(server, COMPLETIONS, {name: value})
    assert server.backend.generations == []
