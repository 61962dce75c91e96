"""Clients that leave: every generation is cancelled once, no task stays, whatever the state."""

import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from dualpace.testing.fake_backend import Hold, Script, always
from tests.unit.gateway.conftest import LiveServer, Serve, wait_until

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def request_bytes(path: str, fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def connect(server: LiveServer, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(data)
    return connection


def disconnects(server: LiveServer) -> dict[str, float]:
    return by_label(server, 'dualpace_client_disconnects_total{state="')


def by_label(server: LiveServer, prefix: str) -> dict[str, float]:
    """Return a metric's values that are not 0, by the label after the prefix."""
    page = server.client.get("/metrics").text
    lines = [line for line in page.splitlines() if line.startswith(prefix)]
    values = {
        line.removeprefix(prefix).partition('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
    }
    return {label: value for label, value in values.items() if value}


def leave_once(server: LiveServer, connection: socket.socket, state: str) -> None:
    """Close the connection; check that everything of it ends and that it is counted once."""
    connection.close()
    wait_until(lambda: all(g.num_cancels for g in server.backend.generations))
    server.assert_at_rest()
    assert disconnects(server) == {state: 1.0}


ROUTES = [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": ["a", "b"]})]


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_before_the_first_token(
    serve: Serve, path: str, body: dict[str, Any], stream: bool
) -> None:
    server = serve(always(Hold()))
    connection = connect(server, request_bytes(path, {**body, "n": 2, "stream": stream}))
    wait_until(lambda: len(server.backend.generations) >= 2)
    leave_once(server, connection, "waiting")


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_amid_the_tokens(serve: Serve, path: str, body: dict[str, Any], stream: bool) -> None:
    server = serve(always(1000, 1001, Hold()))
    connection = connect(server, request_bytes(path, {**body, "n": 2, "stream": stream}))
    wait_until(lambda: len(server.backend.generations) >= 2)
    if stream:
        assert connection.recv(4096)
    wait_until(lambda: all(g.num_tokens == 2 for g in server.backend.generations))
    leave_once(server, connection, "generating")


@pytest.mark.parametrize("stream", [False, True])
def test_when_some_choices_have_ended(serve: Serve, stream: bool) -> None:
    scripts: list[Script] = [always(1000, 2), always(1000, 1001, 1002, Hold()), always(Hold())]
    server = serve(lambda prompt, params: scripts[params.sampling.seed](prompt, params))
    stop = server.gateway.model.token_text.label(1001)
    fields = {**CHAT, "n": 3, "seed": 0, "stream": stream, "stop": [stop]}
    connection = connect(server, request_bytes("/v1/chat/completions", fields))
    wait_until(lambda: len(server.backend.generations) == 3)
    # One has ended by itself, one was cancelled at its stop string, one waits.
    wait_until(lambda: server.backend.generations[1].num_cancels == 1)
    wait_until(lambda: server.backend.generations[0].ended is not None)
    connection.close()
    wait_until(lambda: server.backend.generations[2].num_cancels == 1)
    server.assert_at_rest()
    assert [g.num_cancels for g in server.backend.generations] == [0, 1, 1]
    ends = by_label(server, 'vllm:request_success_total{engine="0",finished_reason="')
    assert ends == {"stop": 2, "abort": 1}


def test_while_the_request_is_sent(serve: Serve) -> None:
    server = serve(always(Hold()))
    data = request_bytes("/v1/completions", {"prompt": "x" * 1000})
    connection = connect(server, data[:-500])
    wait_until(lambda: server.num_tasks() > 3)
    leave_once(server, connection, "receiving")
    assert server.backend.generations == []


def test_while_the_prompt_is_tokenized(serve: Serve) -> None:
    server = serve(always(Hold()))
    server.backend.info = replace(server.backend.info, max_model_len=10**6)
    data = request_bytes("/v1/completions", {"prompt": "many words " * 300_000, "max_tokens": 1})
    connection = connect(server, data)
    wait_until(lambda: server.num_tasks() > 3)
    connection.close()
    server.assert_at_rest()
    assert server.backend.generations == []
    assert sum(disconnects(server).values()) == 1


def test_a_client_that_resets_its_connection(serve: Serve) -> None:
    server = serve(always(1000, Hold()))
    connection = connect(server, request_bytes("/v1/chat/completions", {**CHAT, "stream": True}))
    assert connection.recv(4096)
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    leave_once(server, connection, "generating")


def test_many_at_once_leave_nothing_behind(serve: Serve) -> None:
    server = serve(always(1000, Hold()))
    connections = [
        connect(server, request_bytes("/v1/chat/completions", {**CHAT, "stream": bool(i % 2)}))
        for i in range(40)
    ]
    wait_until(lambda: len(server.backend.generations) == 40)
    for connection in connections:
        connection.close()
    wait_until(lambda: all(g.num_cancels == 1 for g in server.backend.generations))
    server.assert_at_rest()


def test_a_complete_answer_is_no_disconnect(serve: Serve) -> None:
    server = serve(always(1000, 2))
    for stream in (False, True):
        assert server.chat("Hi", stream=stream).status_code == 200
    server.assert_at_rest()
    assert disconnects(server) == {}
