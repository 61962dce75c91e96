"""Probes, models, version, request ids, and the description of the API."""

import logging
import re

import pytest

from dualpace.core.errors import ProtocolError
from dualpace.testing.fake_backend import FakeBackend, always
from tests.unit.gateway.conftest import Serve, wait_until

EOS = 2


def test_a_node_that_is_well(serve: Serve) -> None:
    server = serve()
    for path in ("/livez", "/readyz", "/health"):
        assert server.client.get(path).status_code == 200


def test_an_engine_that_is_not_makes_the_node_unready_but_not_dead(serve: Serve) -> None:
    server = serve(always(EOS))
    server.backend.unready = "the cpu-engine has not been heard of for 40 s"
    assert server.client.get("/livez").status_code == 200
    for path in ("/readyz", "/health"):
        response = server.client.get(path)
        assert response.status_code == 503
        assert "cpu-engine" in response.json()["error"]["message"]
    assert server.chat("Hi").status_code == 503
    assert server.backend.generations == []
    server.backend.unready = None
    assert server.client.get("/readyz").status_code == 200
    assert server.chat("Hi").status_code == 200


def test_a_node_whose_engines_refuse_says_so(serve: Serve) -> None:
    backend = FakeBackend(always(EOS))
    backend.start_error = ProtocolError("the cpu-engine serves another model than this gateway")
    server = serve(backend=backend)
    assert server.client.get("/livez").status_code == 200
    for response in (
        server.client.get("/readyz"),
        server.client.get("/v1/models"),
        server.chat("Hi"),
    ):
        assert response.status_code == 503
        assert "another model" in response.json()["error"]["message"]


def test_models_tell_the_effective_limit(serve: Serve) -> None:
    server = serve()
    cards = server.client.get("/v1/models").json()
    assert cards["object"] == "list"
    assert [card["id"] for card in cards["data"]] == ["demo", "other-name"]
    for card in cards["data"]:
        assert card["object"] == "model"
        assert card["max_model_len"] == server.backend.info.max_model_len
        assert server.client.get(f"/v1/models/{card['id']}").json() == card
    response = server.client.get("/v1/models/org/none")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_version(serve: Serve) -> None:
    body = serve().client.get("/version").json()
    assert set(body) == {"version"}
    assert re.fullmatch(r"\d+\.\d+.*|unknown", body["version"])


def test_the_api_describes_its_bodies(serve: Serve) -> None:
    document = serve().client.get("/openapi.json").json()
    operation = document["paths"]["/v1/chat/completions"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert "messages" in schema["required"]
    assert schema["properties"]["temperature"]["anyOf"][0]["maximum"] == 2
    assert schema["properties"]["messages"]["items"]["properties"]["role"]["enum"]
    assert "$ref" not in str(schema)


@pytest.mark.parametrize("stream", [False, True])
def test_request_ids_are_echoed_or_made(serve: Serve, stream: bool) -> None:
    server = serve(always(EOS))
    given = {"X-Request-Id": "trace-1/2:3"}

    def id_of(fields: dict[str, object], headers: dict[str, str]) -> str:
        body = {"prompt": "x", "stream": stream, **fields}
        response = server.post("/v1/completions", body, headers=headers)
        assert response.status_code == 200
        return str(response.headers["x-request-id"])

    assert id_of({}, given) == "trace-1/2:3"
    assert id_of({"request_id": "mine"}, {}) == "mine"
    assert id_of({"request_id": "mine"}, given) == "trace-1/2:3"
    made = {id_of({}, {}) for _ in range(3)}
    assert len(made) == 3
    for bad in ("a b", "x" * 129):
        assert id_of({}, {"X-Request-Id": bad}) != bad


def test_errors_have_request_ids_too(serve: Serve) -> None:
    server = serve()
    for path in ("/nothing", "/v1/chat/completions"):
        response = server.client.get(path, headers={"X-Request-Id": "abc"})
        assert response.headers["x-request-id"] == "abc"


def test_answers_to_one_client_id_are_told_apart(serve: Serve) -> None:
    server = serve(always(EOS))
    bodies = [server.chat("Hi", request_id="same").json() for _ in range(2)]
    assert bodies[0]["id"] != bodies[1]["id"]


def test_the_log_has_requests_but_no_words_of_theirs(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="dualpace")
    server = serve(always(1000, EOS))
    shown = server.chat("xyzzy-secret", unheard_of=1).json()["choices"][0]["message"]["content"]
    server.complete("xyzzy-secret", temperature="xyzzy-secret")
    server.client.get("/xyzzy-secret")
    server.client.get("/livez")
    wait_until(lambda: "/livez" in caplog.text)
    assert "xyzzy" not in caplog.text
    assert shown not in caplog.text
    assert "unheard_of" in caplog.text
    records = [r for r in caplog.records if r.name == "dualpace.gateway.http.middleware"]
    assert [r.levelname for r in records if "/livez" in r.getMessage()] == ["DEBUG"]
    assert [r.levelname for r in records if "/v1/chat" in r.getMessage()] == ["INFO"]


def test_a_mistake_of_ours_is_a_500_that_tells_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()

    def broken() -> None:
        raise KeyError("internal detail")

    server.backend.engines = broken  # type: ignore[method-assign, assignment]
    response = server.client.get("/metrics")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "detail" not in response.text
    assert response.headers["x-request-id"]
    assert "internal detail" in caplog.text


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
def test_probes_answer_head_too(serve: Serve, path: str) -> None:
    server = serve(always(EOS))
    response = server.client.head(path)
    assert response.status_code == 200
    assert response.content == b""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_the_description_knows_whole_answers_and_streams(serve: Serve, path: str) -> None:
    document = serve().client.get("/openapi.json").json()
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
