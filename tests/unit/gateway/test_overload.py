"""More than can be served, and requests that take too long: told at once, and nobody else pays."""

import socket
import threading
from contextlib import closing
from typing import Any

import httpx2
import pytest

from dualpace.testing.fake_backend import Hold, always
from tests.unit.gateway.conftest import LiveServer, Serve, wait_until

EOS = 2


class Background:
    """A request that waits in a thread."""

    def __init__(self, server: LiveServer, **fields: Any) -> None:
        self.response: httpx2.Response | None = None
        self._thread = threading.Thread(target=self._run, args=(server, fields))
        known = len(server.backend.generations)
        self._thread.start()
        wait_until(lambda: len(server.backend.generations) > known)

    def _run(self, server: LiveServer, fields: dict[str, Any]) -> None:
        with httpx2.Client(base_url=server.url, timeout=30) as client:
            self.response = client.post("/v1/completions", json={"prompt": "Hi", **fields})

    def join(self) -> httpx2.Response:
        self._thread.join(30)
        assert self.response is not None
        return self.response


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("limits", "fields"),
    [
        ({"max_waiting_generations": 2}, {"n": 2}),
        ({"max_waiting_tokens": 20}, {"prompt": "word " * 30}),
    ],
)
def test_a_full_queue_says_so_at_once(
    serve: Serve, limits: dict[str, int], fields: dict[str, Any], stream: bool
) -> None:
    server = serve(always(Hold(), 1000, EOS), **limits)
    first = Background(server, **fields)  # whatever comes alone is let in
    refused = server.complete(**{"prompt": "Hi", **fields}, stream=stream)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "overloaded"
    assert int(refused.headers["retry-after"]) > 0
    page = server.client.get("/metrics").text
    assert 'dualpace_requests_refused_total{reason="queue_full"} 1.0' in page
    assert server.client.get("/readyz").status_code == 200  # load is no reason
    server.backend.let_go()
    assert first.join().status_code == 200
    assert server.complete(**{"prompt": "Hi", **fields}).status_code == 200
    page = server.client.get("/metrics").text
    assert "dualpace_waiting_generations 0.0" in page
    assert "dualpace_waiting_prompt_tokens 0.0" in page


def test_who_has_a_token_waits_no_more(serve: Serve) -> None:
    server = serve(always(1000, Hold(), EOS), max_waiting_generations=1)
    running = [Background(server) for _ in range(3)]
    server.backend.let_go()
    assert [request.join().status_code for request in running] == [200] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waits_too_long_is_a_504(serve: Serve, stream: bool) -> None:
    server = serve(always(Hold(), EOS), first_token_timeout_s=0.2)
    response = server.complete("Hi", stream=stream)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"
    assert response.headers["x-should-retry"] == "false"
    server.assert_at_rest()
    assert 'refused_total{reason="deadline"} 1.0' in server.client.get("/metrics").text


def test_a_client_says_how_long_it_waits(serve: Serve) -> None:
    server = serve(always(1000, Hold(), EOS), first_token_timeout_s=0.1)
    headers = {"x-dualpace-timeout-ms": "300"}
    body = {"prompt": "Hi"}
    whole = server.post("/v1/completions", body, headers=headers)
    assert whole.status_code == 504
    stream = server.post("/v1/completions", {**body, "stream": True}, headers=headers)
    assert stream.status_code == 200
    assert '"deadline_exceeded"' in stream.text
    assert "[DONE]" not in stream.text
    for bad in ("0", "-5", "x", "1e9", "9" * 30):
        response = server.post("/v1/completions", body, headers={"x-dualpace-timeout-ms": bad})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "x-dualpace-timeout-ms"


def test_a_body_that_does_not_come_is_a_408(serve: Serve) -> None:
    server = serve(always(EOS), body_timeout_s=0.2)
    with closing(socket.create_connection(("127.0.0.1", server.port), 10)) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
        )
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408")
    server.assert_at_rest()
