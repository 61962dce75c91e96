"""The store under lists and overtaking events; the client against a server that misbehaves."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp.web
import kopf
import pytest

from dualpace.operator.client import ApiClient
from dualpace.operator.errors import ApiError
from dualpace.operator.store import Store


def pod(name: str, uid: str, **parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "uid": uid}, **parts}


def make_store() -> tuple[Store, list[tuple[str, str]]]:
    changes: list[tuple[str, str]] = []

    def note(kind: str, before: Any, after: Any) -> None:
        changes.append((kind, "gone" if after is None else after.id.uid))

    return Store(note), changes


def test_a_predecessors_end_does_not_remove_its_successor() -> None:
    store, _ = make_store()
    store.event("Pod", "ADDED", pod("a", "1"))
    store.event("Pod", "ADDED", pod("a", "2"))
    store.event("Pod", "DELETED", pod("a", "1"))
    assert store.world.views["Pod"]["n", "a"].id.uid == "2"


def test_a_listing_removes_what_vanished_unseen_but_not_what_came_meanwhile() -> None:
    store, changes = make_store()
    for name in ("vanished", "kept", "changed"):
        store.event("Pod", None, pod(name, "1"))
    changes.clear()
    store.begin_listing()
    store.event("Pod", "ADDED", pod("new", "1"))
    store.event("Pod", "MODIFIED", pod("changed", "1", status={"phase": "Running"}))
    store.take_listing("Pod", [pod("kept", "1"), pod("changed", "1")])
    store.end_listing()
    assert {name for _, name in store.world.views["Pod"]} == {"kept", "changed", "new"}
    assert store.world.views["Pod"]["n", "changed"].phase == "Running"
    assert ("Pod", "gone") in changes


def test_changes_that_nobody_cares_about_are_none() -> None:
    store, changes = make_store()
    for version in ("1", "2"):
        node = {"metadata": {"name": "x", "uid": "1", "resourceVersion": version}, "status": {}}
        store.event("Node", "MODIFIED", node)
    assert len(changes) == 1


Answers = list[tuple[int, Any]]


async def ask(
    answers: Answers, use: Callable[[ApiClient], Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, list[aiohttp.web.Request], int]:
    """Serve these answers one after the other; returns outcome, requests, and logins."""
    seen: list[aiohttp.web.Request] = []
    logins = 0

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
        seen.append(request)
        status, body = answers.pop(0)
        return aiohttp.web.json_response(body, status=status)

    app = aiohttp.web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]

    def login() -> kopf.ConnectionInfo:
        nonlocal logins
        logins += 1
        return kopf.ConnectionInfo(server=f"http://127.0.0.1:{port}", token=f"t{logins}")

    monkeypatch.setattr("dualpace.operator.client._RETRIES_S", (0.0, 0.0))
    try:
        async with ApiClient(login) as client:
            return await use(client), seen, logins
    finally:
        await runner.cleanup()


def test_an_overloaded_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Answers = [(429, {"message": "slow down"}), (500, {}), (200, {"ok": 1})]
    result, seen, _ = asyncio.run(ask(answers, lambda c: c.request("GET", "/x"), monkeypatch))
    assert result == {"ok": 1}
    assert len(seen) == 3


def test_a_refusal_is_told_in_the_servers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Answers = [(422, {"message": "spec.cpu: no"})]
    with pytest.raises(ApiError, match=r"spec\.cpu: no"):
        asyncio.run(ask(answers, lambda c: c.request("POST", "/x", body={}), monkeypatch))


def test_a_lasting_failure_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApiError, match="overloaded"):
        asyncio.run(
            ask(
                [(503, {"message": "overloaded"})] * 3,
                lambda c: c.request("GET", "/x"),
                monkeypatch,
            )
        )


def test_credentials_that_expired_are_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Answers = [(401, {}), (200, {})]
    _, seen, logins = asyncio.run(ask(answers, lambda c: c.request("GET", "/x"), monkeypatch))
    assert logins == 2
    assert [r.headers["Authorization"] for r in seen] == ["Bearer t1", "Bearer t2"]


def test_long_lists_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def names(client: ApiClient) -> list[str]:
        return [item["n"] async for item in client.list_all("/pods", "label")]

    answers: Answers = [
        (200, {"items": [{"n": "a"}], "metadata": {"continue": "c1"}}),
        (200, {"items": [{"n": "b"}], "metadata": {}}),
    ]
    found, seen, _ = asyncio.run(ask(answers, names, monkeypatch))
    assert found == ["a", "b"]
    assert seen[1].query["continue"] == "c1"
    assert {r.query["labelSelector"] for r in seen} == {"label"}
