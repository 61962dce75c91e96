"""The short way to handlers: which routes take it, and that nobody can tell."""

import pytest
from fastapi import FastAPI
from starlette.requests import Request

from dualpace.gateway.http.direct_routes import direct_routes
from dualpace.testing.fake_backend import always
from tests.unit.gateway.conftest import Serve

EOS = 2


def test_only_handlers_that_take_nothing_but_the_request_go_the_short_way() -> None:
    app = FastAPI()

    @app.post("/plain")
    async def plain(request: Request) -> None: ...

    @app.post("/declared")
    async def declared(request: Request, number: int) -> None: ...

    @app.post("/nothing")
    async def nothing() -> None: ...

    @app.get("/read")
    async def read(request: Request) -> None: ...

    assert set(direct_routes(app)) == {"/plain"}


@pytest.mark.parametrize(
    "body", [{"prompt": "x"}, {"prompt": 3}, {"prompt": "x", "model": "none"}, [1]]
)
def test_answers_are_the_same_on_both_ways(
    serve: Serve, body: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for short in (True, False):
        if not short:
            monkeypatch.setattr("dualpace.gateway.http.app.direct_routes", lambda app: {})
        response = serve(always(1000, EOS)).post("/v1/completions", body)
        names = {n: v for n, v in response.headers.items() if n not in {"date", "x-request-id"}}
        answer = response.json()
        for varying in ("id", "created"):
            answer.pop(varying, None)
        answers.append((response.status_code, names, answer))
    assert answers[0] == answers[1]


def test_requests_are_counted_by_route_all_the_same(serve: Serve) -> None:
    server = serve(always(1000, EOS))
    server.complete()
    page = server.client.get("/metrics").text
    line = 'http_requests_total{handler="/v1/completions",method="POST",status="200"} 1.0'
    assert line in page
