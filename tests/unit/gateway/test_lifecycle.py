"""Draining: what a node that shuts down still does, and what it does not any more."""

import json
import threading
import time

import httpx2
import pytest

from dualpace.testing.fake_backend import Hold, always
from tests.unit.gateway.conftest import LiveServer, Serve, chunks_of, sse_data, wait_until

EOS = 2


class Background:
    """A request that runs while the test does other things."""

    def __init__(self, server: LiveServer, stream: bool) -> None:
        self._server = server
        self._stream = stream
        self.response: httpx2.Response | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with httpx2.Client(base_url=self._server.url, timeout=20) as client:
            body = {"prompt": "x", "stream": self._stream}
            self.response = client.post("/v1/completions", json=body)

    def result(self) -> httpx2.Response:
        self._thread.join(20)
        assert self.response is not None
        return self.response


def begin(server: LiveServer, stream: bool) -> Background:
    request = Background(server, stream)
    wait_until(lambda: any(g.num_tokens for g in server.backend.generations))
    return request


def drain(server: LiveServer, grace_s: float) -> threading.Thread:
    lifecycle = server.gateway.lifecycle
    thread = threading.Thread(target=lambda: server.call(lambda: lifecycle.drain(grace_s)))
    thread.start()
    wait_until(lambda: server.client.get("/readyz").status_code == 503)
    return thread


@pytest.mark.parametrize("stream", [False, True])
def test_running_requests_finish_and_new_ones_are_refused(serve: Serve, stream: bool) -> None:
    server = serve(always(1000, Hold(), 1001, EOS))
    running = begin(server, stream)
    draining = drain(server, grace_s=15)
    assert server.client.get("/livez").status_code == 200
    assert server.client.get("/health").status_code == 200
    refused = server.complete("y")
    assert refused.status_code == 503
    assert "shutting down" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"]
    assert draining.is_alive()
    server.backend.let_go()
    response = running.result()
    choice = chunks_of(response)[-1]["choices"][0] if stream else response.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    draining.join(5)
    assert not draining.is_alive()


@pytest.mark.parametrize("stream", [False, True])
def test_what_outlives_the_grace_is_ended_with_an_error(serve: Serve, stream: bool) -> None:
    server = serve(always(1000, Hold()))
    running = begin(server, stream)
    begin_s = time.monotonic()
    drain(server, grace_s=0.2).join(5)
    assert 0.2 <= time.monotonic() - begin_s < 2
    response = running.result()
    if stream:
        error = json.loads(sse_data(response)[-1])["error"]
    else:
        assert response.status_code == 503
        error = response.json()["error"]
    assert "shutting down" in error["message"]
    assert server.backend.generations[0].num_cancels == 1


def test_with_nothing_running_draining_is_done_at_once(serve: Serve) -> None:
    server = serve(always(1000, EOS))
    assert server.complete("x").status_code == 200
    begin_s = time.monotonic()
    drain(server, grace_s=15).join(5)
    assert time.monotonic() - begin_s < 1


def test_what_would_start_after_the_end_of_the_grace_does_not(serve: Serve) -> None:
    server = serve(always(Hold()))
    server.call(server.gateway.lifecycle.abort_all)
    assert server.complete("x").status_code == 503
    assert server.backend.generations == []
