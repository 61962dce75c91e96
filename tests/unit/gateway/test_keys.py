"""Who gets in, what a client may use, and what it is told."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from dualpace.core.errors import SettingsError
from dualpace.gateway.limits import keys as module
from dualpace.gateway.limits.keys import KeyFile
from dualpace.testing.fake_backend import always
from tests.unit.gateway.conftest import LiveServer, Serve, wait_until
from tests.unit.gateway.redis_server import RedisServer, needs_redis

EOS = 2
SECRET = "sk-very-secret"
WriteKeys = Callable[..., Path]


@pytest.fixture
def write_keys(tmp_path: Path) -> WriteKeys:
    def write(*entries: Any) -> Path:
        path = tmp_path / "keys.json"
        fresh = tmp_path / "keys.new"
        fresh.write_text(json.dumps({"keys": entries}))
        fresh.replace(path)
        return path

    return write


def entry(name: str = "a", key: str = SECRET, **limits: Any) -> dict[str, Any]:
    return {"name": name, "key": key, **limits}


def hashed(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def auth(key: str = SECRET) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(server: LiveServer, key: str = SECRET, **fields: Any) -> Any:
    body = {"prompt": "Hi there", **fields}
    return server.post("/v1/completions", body, headers=auth(key))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": SECRET},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {SECRET}"},
        {"Authorization": f"Bearer {SECRET}x"},
        {"Authorization": f"Bearer {hashed(SECRET)}"},
        {"Authorization": b"Bearer \xff\xfe"},
    ],
)
def test_without_a_known_key_there_is_a_401_and_nothing_is_read(
    serve: Serve, write_keys: WriteKeys, headers: dict[str, Any]
) -> None:
    server = serve(always(1000, EOS), api_keys_file=str(write_keys(entry())))
    for path in ("/v1/completions", "/v1/chat/completions", "/no/such/route"):
        response = server.client.post(path, content=b"{", headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        assert SECRET not in response.text
    assert server.client.get("/v1/models", headers=headers).status_code == 401
    assert server.client.get("/openapi.json", headers=headers).status_code == 401
    for path in ("/livez", "/readyz", "/health", "/metrics"):
        assert server.client.get(path, headers=headers).status_code == 200
    assert not server.backend.generations


def test_keys_and_their_digests_let_in(serve: Serve, write_keys: WriteKeys) -> None:
    path = write_keys(entry(), entry("b", hashed("other")))
    server = serve(always(1000, EOS), api_keys_file=str(path))
    assert ask(server).status_code == 200
    assert ask(server, "other").status_code == 200
    with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        client.with_options(api_key="other").models.list()


def test_a_changed_file_counts_and_a_broken_one_does_not(
    write_keys: WriteKeys, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_CHECK_EVERY_S", 0.0)
    path = write_keys(entry())
    keys = KeyFile(path)
    assert keys.client(SECRET) is not None
    write_keys(entry("b", "new"))
    assert keys.client(SECRET) is None
    assert keys.client("new") == module.Client("b")
    path.write_text("{")
    assert keys.client("new") is not None
    path.unlink()
    assert keys.client("new") is not None
    write_keys(entry())
    assert keys.client("new") is None
    assert keys.client(SECRET) is not None
    assert "stay as they were" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{",
        "[]",
        '{"keys": []}',
        '{"keys": [{"key": "x"}]}',
        '{"keys": [{"name": "a"}]}',
        '{"keys": [{"name": "a", "key": ""}]}',
        '{"keys": [{"name": "a", "key": "sha256:12"}]}',
        '{"keys": [{"name": "a", "key": "x"}, {"name": "b", "key": "x"}]}',
        '{"keys": [{"name": "a", "key": "x", "requests_per_minute": 0}]}',
        '{"keys": [{"name": "a", "key": "x", "tokens_per_day": true}]}',
        '{"keys": [{"name": "a", "key": "x", "request_per_minute": 5}]}',
    ],
)
def test_a_file_that_makes_no_sense_stops_the_start(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match="api_keys_file"):
        KeyFile(path)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_beyond_the_limit_are_told_when_to_come_back(
    serve: Serve, write_keys: WriteKeys, stream: bool
) -> None:
    path = write_keys(entry(requests_per_minute=2), entry("b", "other"))
    server = serve(always(1000, EOS), api_keys_file=str(path))
    for left in (1, 0):
        response = ask(server, stream=stream)
        assert response.status_code == 200
        assert response.headers["x-ratelimit-limit-requests"] == "2"
        assert response.headers["x-ratelimit-remaining-requests"] == str(left)
        assert response.headers["x-ratelimit-reset-requests"].endswith("ms")
    refused = ask(server, stream=stream)
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert 25 <= int(refused.headers["retry-after"]) <= 31
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert ask(server, "other").status_code == 200
    assert 'dualpace_requests_refused_total{reason="rate_limit"} 1.0' in (
        server.client.get("/metrics").text
    )


def test_tokens_count_both_ways(serve: Serve, write_keys: WriteKeys) -> None:
    path = write_keys(entry(tokens_per_minute=100))
    server = serve(always(*[1000] * 90, EOS), api_keys_file=str(path))
    first = ask(server, max_tokens=200)
    used = first.json()["usage"]["total_tokens"]
    assert used == 91 + first.json()["usage"]["prompt_tokens"]
    prompt = first.json()["usage"]["prompt_tokens"]
    assert first.headers["x-ratelimit-remaining-tokens"] == str(100 - prompt)

    def remaining() -> int:
        return int(ask(server, "".join(SECRET)).headers["x-ratelimit-remaining-tokens"])

    wait_until(lambda: remaining() < 100 - used)
    refused = server.post("/v1/completions", {"prompt": "x " * 150}, headers=auth())
    assert refused.status_code == 429
    assert refused.headers["x-should-retry"] == "false"  # it needs more than there ever is


@needs_redis
def test_two_gateways_on_one_redis_enforce_one_limit(
    serve: Serve, write_keys: WriteKeys, tmp_path: Path
) -> None:
    redis = RedisServer(tmp_path)
    options = {
        "api_keys_file": str(write_keys(entry(requests_per_day=6))),
        "redis_url": redis.url,
    }
    servers = [serve(always(1000, EOS), **options) for _ in range(2)]
    statuses = [ask(servers[turn % 2]).status_code for turn in range(10)]
    metric = servers[0].client.get("/metrics").text
    degraded = "dualpace_limits_degraded 1.0" in metric
    assert degraded or statuses == [200] * 6 + [429] * 4
    redis.stop()
    assert ask(servers[0]).status_code == 200
    assert "dualpace_limits_degraded 1.0" in servers[0].client.get("/metrics").text


def test_where_nobody_may_decide_requests_are_refused(serve: Serve, write_keys: WriteKeys) -> None:
    server = serve(
        always(1000, EOS),
        api_keys_file=str(write_keys(entry(requests_per_day=6))),
        redis_url="redis://127.0.0.1:1/0",
        redis_down="deny",
    )
    response = ask(server)
    assert response.status_code == 503
    assert "retry-after" in response.headers


@pytest.mark.parametrize(
    "options",
    [
        {"redis_url": "http://x"},
        {"redis_down": "maybe"},
        {"api_keys_file": "/no/such/file"},
        {"admin_port": 70_000},
    ],
)
def test_settings_that_make_no_sense_stop_the_start(serve: Serve, options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        serve(always(1000, EOS), **options)
