"""What a stream does besides its text: comments when silent, errors before and after its start."""

import json
import time
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from dualpace.core.errors import PeerLostError
from dualpace.core.request import FinishReason
from dualpace.gateway.text.model import ServedModel
from dualpace.testing.fake_backend import Break, Burst, End, Hold, Pause, Step, always
from tests.unit.gateway.conftest import Serve, chunks_of, ids_of, sse_data, wait_until

EOS = 2


def test_silence_is_broken_by_comments_that_are_no_events(serve: Serve) -> None:
    server = serve(always(Pause(0.25), 1000, Pause(0.25), EOS), ping_interval_s=0.05)
    response = server.chat("Hi", stream=True)
    assert response.text.startswith(": ping\n\n")
    before, after = response.text.split('"role"')
    for part in (before, after):
        assert 1 <= part.count(": ping\n\n") <= 6
    assert [c["finish_reason"] for chunk in chunks_of(response) for c in chunk["choices"]] == [
        None, None, "stop",
    ]  # fmt: skip


def test_a_stream_that_is_never_silent_has_no_comments(serve: Serve) -> None:
    steps: list[Step] = [Pause(0.02), 1000] * 40
    server = serve(always(*steps, EOS), ping_interval_s=0.5)  # less than the stream takes
    assert ": ping" not in server.chat("Hi", stream=True).text


def test_text_is_sent_as_it_comes(serve: Serve) -> None:
    server = serve(always(1000, Hold(), 1001, EOS))
    body = {"prompt": "x", "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        first = json.loads(next(lines).removeprefix("data: "))
        assert first["choices"][0]["text"]
        server.backend.let_go()
        assert [line for line in lines if line][-1] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("step", "status", "words"),
    [
        (End(FinishReason.ERROR, "The device ran out of memory."), 500, "ran out of memory"),
        (Break(PeerLostError("the gpu-engine went away")), 503, "gpu-engine went away"),
        (Break(ZeroDivisionError("secret detail")), 500, "internal"),
    ],
)
def test_a_failure_before_the_first_token_has_a_status(
    serve: Serve, stream: bool, step: Step, status: int, words: str
) -> None:
    server = serve(always(step))
    response = server.chat("Hi", stream=stream)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["type"] == "server_error"
    assert "secret" not in response.text
    assert words in error["message"] or error["code"] == "internal_error"
    assert ("retry-after" in response.headers) == (status == 503)


def test_a_failure_after_the_start_is_an_event_and_the_last_one(serve: Serve) -> None:
    scripts = [
        always(1000, Pause(0.02), End(FinishReason.ERROR, "The device is gone.")),
        always(1000, Hold()),
    ]
    server = serve(lambda prompt, params: scripts[params.sampling.seed](prompt, params))
    response = server.chat("Hi", n=2, seed=0, stream=True)
    assert response.status_code == 200
    *chunks, last = sse_data(response)
    assert chunks
    assert all("error" not in json.loads(chunk) for chunk in chunks)
    assert json.loads(last)["error"]["message"] == "The device is gone."
    assert "[DONE]" not in response.text
    assert [g.num_cancels for g in server.backend.generations] == [0, 1]


def test_a_failure_of_one_choice_fails_a_whole_answer(serve: Serve) -> None:
    server = serve(
        lambda _, params: [1000, EOS if params.sampling.seed == 1 else End(FinishReason.ERROR)]
    )
    assert server.chat("Hi", n=2, seed=1).status_code == 500


def test_engines_that_are_gone_are_a_503_that_says_when_to_retry(serve: Serve) -> None:
    server = serve(always(EOS))
    server.backend.lost = True
    for stream in (False, True):
        response = server.chat("Hi", stream=stream)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "service_unavailable"
        assert int(response.headers["retry-after"]) > 0
    server.backend.lost = False
    assert server.chat("Hi").status_code == 200


def test_a_slow_reader_gets_everything(serve: Serve) -> None:
    count = 20_000
    server = serve(always(*[1000] * count))
    server.backend.info = replace(server.backend.info, max_model_len=count + 100)
    body = {"prompt": "x", "stream": True, "max_tokens": count, "return_token_ids": True}
    seen = 0
    with server.client.stream("POST", "/v1/completions", json=body, timeout=60) as response:
        time.sleep(0.3)  # everything that fits into buffers is written by now
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                seen += len(choice.get("token_ids", []))
    assert seen == count


def test_one_connection_serves_one_request_after_another(serve: Serve) -> None:
    server = serve(always(1000, EOS))
    limits = httpx2.Limits(max_connections=1)
    with httpx2.Client(base_url=server.url, limits=limits, timeout=10) as client:
        for stream in (True, False) * 3:
            response = client.post("/v1/completions", json={"prompt": "x", "stream": stream})
            assert response.status_code == 200
    wait_until(lambda: all(g.closed for g in server.backend.generations))


@pytest.mark.parametrize(
    "options", [{}, {"stream_options": {"include_usage": True}}, {"n": 2}, {"echo": True}]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_chunks_of_plain_text_have_the_fields_of_every_other_chunk(
    serve: Serve, demo_model: ServedModel, path: str, options: dict[str, Any]
) -> None:
    """They are encoded on a short cut; asking for usage as it grows takes the long way."""
    text = 'quotes " and \\ back\nslashes, ünïcödé 🦊'
    server = serve(always(*ids_of(demo_model, text), EOS))
    prompt: dict[str, Any] = {"prompt": "Hi"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "Hi"}]}
        options = {name: value for name, value in options.items() if name != "echo"}
    body = {**prompt, "stream": True, **options}
    long_way = {**body, "stream_options": {"continuous_usage_stats": True, "include_usage": True}}
    short: list[Any] = []
    long: list[Any] = []
    for sent, found in ((body, short), (long_way, long)):
        for chunk in chunks_of(server.post(path, sent)):
            usage = chunk.pop("usage", None)
            assert usage is None or sent is long_way or not chunk["choices"]
            chunk.pop("id")
            chunk.pop("created")
            if chunk["choices"]:
                found.append(chunk)
    assert sorted(map(str, short)) == sorted(map(str, long))
    assert len(short) > 5


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stop": [" brown fox j"]},
        {"logprobs": 1, "return_token_ids": True},
        {"stream_options": {"continuous_usage_stats": True, "include_usage": True}},
        {"max_tokens": 5},
    ],
)
def test_tokens_that_come_at_once_make_the_chunks_that_they_make_one_by_one(
    serve: Serve, demo_model: ServedModel, fields: dict[str, Any]
) -> None:
    ids = ids_of(demo_model, "The quick brown fox jumps over the lazy dog. 🦊")
    shown = []
    for steps in ([*ids, EOS], [Burst((*ids[:2],)), Burst((*ids[2:], EOS))]):
        server = serve(always(*steps))
        body = {"prompt": "Hi", "stream": True, "max_tokens": 100, **fields}
        chunks = chunks_of(server.post("/v1/completions", body))
        shown.append([{**chunk, "id": "", "created": 0} for chunk in chunks])
        server.assert_at_rest()
    assert shown[0] == shown[1]
    assert len(shown[0]) > 2


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("options", [{}, {"stop": ["no such thing"]}, {"n": 2}])
def test_a_client_that_wants_ids_gets_each_as_it_comes_its_text_complete_or_not(
    serve: Serve, demo_model: ServedModel, path: str, options: dict[str, Any]
) -> None:
    ids = ids_of(demo_model, "🦊🦊 no such 🦊")
    assert demo_model.token_text.label(ids[0]) == "\N{REPLACEMENT CHARACTER}", "half a character"
    server = serve(always(*ids, EOS))
    prompt: dict[str, Any] = {"prompt": "Hi"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "Hi"}]}
    told = {"return_token_ids": True, "x_dualpace": True}
    chunks = chunks_of(server.post(path, {**prompt, "stream": True, **told, **options}))
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    for index in range(options.get("n", 1)):
        mine = [choice for choice in choices if choice["index"] == index and "token_ids" in choice]
        assert [choice["token_ids"] for choice in mine] == [[t] for t in (*ids, EOS)]
        makers = [choice["x_dualpace"]["engines"] for choice in mine]
        assert makers == [[("gpu", "cpu")[i % 2]] for i in range(len(mine))], "as the script has it"
        texts = [c["delta"].get("content", "") if "chat" in path else c["text"] for c in mine]
        assert "".join(texts) == "🦊🦊 no such 🦊"
        assert texts[0] == ""
