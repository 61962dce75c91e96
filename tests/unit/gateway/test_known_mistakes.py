"""Mistakes that other servers made, each as a test of its kind, where no other file has it."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dualpace.core.request import Engine, FinishReason
from dualpace.gateway.engines.backend import GenerationParams
from dualpace.gateway.engines.node import NodeBackend
from dualpace.gateway.text.model import ServedModel
from dualpace.ipc.engine_client import EngineClient
from dualpace.testing.clock import ManualClock
from dualpace.testing.fake_backend import End, Hold, Pause, Script, Step, always
from tests.unit.gateway.conftest import LiveServer, Serve, chunks_of, ids_of, wait_until
from tests.unit.gateway.test_metrics import scrape, value

EOS = 2
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
}
CHUNKED = ("/v1/chat/completions", "/v1/completions")


def text_of(choice: dict[str, Any]) -> str | None:
    """Return the text of a chunk's choice, None where it carries none."""
    delta = choice.get("delta", choice)
    text: str | None = delta.get("content", delta.get("text"))
    return text


@pytest.mark.parametrize("path", CHUNKED)
def test_text_held_back_makes_no_empty_chunk_and_is_not_kept_for_ever(
    serve: Serve, demo_model: ServedModel, path: str
) -> None:
    server = serve(always(*ids_of(demo_model, "one two three thr"), EOS))
    chunks = chunks_of(
        server.post(path, {**ROUTES[path], "stream": True, "stop": ["three thrones", "zzz"],
                           "max_tokens": 99})
    )  # fmt: skip
    texts = [text_of(c["choices"][0]) for c in chunks]
    first, last = (1, -1) if path == CHUNKED[0] else (0, -1)
    assert all(texts[first:last]), texts
    assert "".join(filter(None, texts)) == "one two three thr"


@pytest.mark.parametrize("path", CHUNKED)
@pytest.mark.parametrize(
    ("steps", "fields", "reason"),
    [
        ((1000, 1001, EOS), {}, "stop"),
        ((EOS,), {}, "stop"),
        ((1000, 1001, 1002), {"max_tokens": 2}, "length"),
        ((1000, 1001, 1002), {"max_tokens": 1}, "length"),
        ((1000, 1001, 1002, EOS), {"stop_token_ids": [1001]}, "stop"),
        ((1000, 1001, Pause(0.02), EOS), {"logprobs": True}, "stop"),
    ],
)
def test_every_choice_of_a_stream_ends_with_its_reason_once(
    serve: Serve, path: str, steps: tuple[Step, ...], fields: dict[str, Any], reason: str
) -> None:
    if path == CHUNKED[1] and "logprobs" in fields:
        fields = {"logprobs": 1}
    server = serve(always(*steps))
    chunks = chunks_of(server.post(path, {**ROUTES[path], "stream": True, "n": 3, **fields}))
    for index in range(3):
        reasons = [
            choice["finish_reason"]
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["index"] == index
        ]
        assert reasons[-1] == reason
        assert not any(reasons[:-1])


def test_an_engine_that_hangs_makes_the_node_unready_while_its_connection_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineClient, "connected", True)

    async def check() -> None:
        clock = ManualClock()
        node = NodeBackend(
            tmp_path / "g", tmp_path / "c", clock=clock, model_fingerprint=b"m",
            engine_timeout_s=30.0, engine_wait_s=30.0,
        )  # fmt: skip
        for engine in Engine:
            node.engine_status(engine, {"host_connected": 1.0})
        assert node.unready_reason() is None
        clock.advance(20.0)
        node.engine_status(Engine.GPU, {"host_connected": 1.0})
        clock.advance(20.0)
        assert "cpu-engine has not been heard of for 40 s" in str(node.unready_reason())
        node.engine_status(Engine.CPU, {})
        assert node.unready_reason() is None

    asyncio.run(check())


def test_probes_answer_under_load_and_generate_nothing(serve: Serve) -> None:
    server = serve(always(Hold(), EOS), max_waiting_generations=4)
    with ThreadPoolExecutor(8) as pool:
        busy = [pool.submit(server.complete, "x") for _ in range(4)]
        wait_until(lambda: len(server.backend.generations) == 4)
        assert server.complete("x").status_code == 503
        for path in ("/livez", "/readyz", "/health", "/ping", "/metrics", "/v1/models"):
            response = server.client.get(path)
            assert response.status_code == 200, path
            assert response.elapsed.total_seconds() < 1.0
        assert len(server.backend.generations) == 4
        server.backend.let_go()
        for future in busy:
            future.result(20)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_engines_error_is_wrapped_once_and_keeps_whose_fault_it_is(
    serve: Serve, path: str, stream: bool
) -> None:
    for reason, status, code in (
        (FinishReason.REFUSED, 400, "invalid_value"),
        (FinishReason.ERROR, 500, "generation_failed"),
    ):
        server = serve(always(End(reason, "This very sentence.")))
        response = server.post(path, {**ROUTES[path], "stream": stream})
        assert response.status_code == status
        assert response.text.count("This very sentence.") == 1
        body = response.json()
        assert set(body) == {"error"}
        assert body["error"]["code"] == code
        assert '"error"' not in json.dumps(body["error"])


def test_two_at_once_under_one_name_get_answers_of_their_own(
    serve: Serve, demo_model: ServedModel
) -> None:
    def script(prompt: tuple[int, ...], params: GenerationParams) -> list[Step]:
        del params
        return [*(s for i in prompt for s in (i, Pause(0.005))), EOS]

    server = serve(script)
    words = [f"word {i} and no other" for i in range(8)]

    def ask(word: str) -> tuple[str, str, str]:
        response = server.complete(word, request_id="the-same", max_tokens=99)
        assert response.status_code == 200, response.text
        body = response.json()
        return body["choices"][0]["text"], body["id"], response.headers["x-request-id"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, words))
    assert [text for text, _, _ in answers] == words
    assert len({reply_id for _, reply_id, _ in answers}) == len(words)
    assert {request_id for *_, request_id in answers} == {"the-same"}


def test_each_gateway_counts_what_went_through_it(serve: Serve) -> None:
    one, other = serve(always(1000, EOS)), serve(always(1000, EOS))
    for server, count in ((one, 3), (other, 1)):
        for _ in range(count):
            assert server.complete("x").is_success
    counted = [
        value(scrape(server), "vllm:request_success_total", finished_reason="stop")
        for server in (one, other)
    ]
    assert counted == [3, 1]


def usages(server: LiveServer, path: str) -> list[Any]:
    usage = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 99}
    body = {**ROUTES[path], **usage}
    return [chunk["usage"] for chunk in chunks_of(server.post(path, body))]


@pytest.mark.parametrize("path", CHUNKED)
def test_a_streams_usage_comes_once_and_is_what_the_engines_made(serve: Serve, path: str) -> None:
    """Of bytes that make one character together, the text would count as fewer tokens."""
    made: list[Step] = [*range(200, 216), EOS]
    script: Script = always(*made)
    server = serve(script)
    *before, last = usages(server, path)
    assert before and not any(before)
    [generation] = server.backend.generations
    assert last["completion_tokens"] == len(made) == generation.num_tokens
    assert last["prompt_tokens"] == len(generation.prompt)
