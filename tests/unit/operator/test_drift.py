"""Serving pods are asked, over HTTP, whether their engines want a new profile."""

import asyncio
from typing import Any

import aiohttp.web
import pytest

from dualpace.core.request import Engine
from dualpace.gateway.telemetry.metrics import Metrics
from dualpace.operator import names
from dualpace.operator.drift import DriftWatch, fetch_page, wants_profile
from dualpace.operator.store import Store
from dualpace.testing.fake_backend import FakeBackend, always


def page(**gauges: float) -> str:
    """The gateway's own page, with what a cpu-engine reports."""
    backend = FakeBackend(always(2))
    backend.gauges = {Engine.CPU: gauges}
    return Metrics(backend, "m").page().decode()


def test_the_gateways_page_tells() -> None:
    assert wants_profile(page(profile_wanted=True, running=3))
    assert not wants_profile(page(profile_wanted=False))
    assert not wants_profile(page(running=3))
    assert not wants_profile("")


def pod(name: str, component: str, ip: str | None, port: int, ready: str = "True") -> Any:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
    return {
        "metadata": {
            "name": name,
            "namespace": "n",
            "uid": f"uid-{name}",
            "labels": {names.SERVICE_LABEL: "s", names.COMPONENT_LABEL: component},
        },
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": port}]}]},
        "status": status | ({"podIP": ip} if ip else {}),
    }


def test_only_serving_pods_that_answer_are_heard() -> None:
    changes: list[tuple[str, str]] = []
    answers = [page(profile_wanted=True)]

    async def metrics(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(text=answers[-1])

    async def run() -> tuple[set[str], set[str]]:
        app = aiohttp.web.Application()
        app.router.add_get("/metrics", metrics)
        runner = aiohttp.web.AppRunner(app)
        await runner.setup()
        await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        store = Store(lambda kind, _, after: changes.append((kind, after.id.name)))
        for body in (
            pod("serving", names.NODE_COMPONENT, "127.0.0.1", port),
            pod("starting", names.NODE_COMPONENT, "127.0.0.1", port, ready="False"),
            pod("measuring", names.PROFILER_COMPONENT, "127.0.0.1", port),
            pod("unreachable", names.NODE_COMPONENT, "127.0.0.1", 1),
            pod("unplaced", names.NODE_COMPONENT, None, port),
        ):
            store.event("Pod", "ADDED", body)
        changes.clear()
        watch = DriftWatch(store, fetch_page, interval_s=1.0)
        await watch.look()
        heard = store.world.drifting
        await watch.look()  # the same again changes nothing
        answers.append(page(profile_wanted=False))
        await watch.look()
        await runner.cleanup()
        return heard, store.world.drifting

    assert asyncio.run(run()) == ({"uid-serving"}, set())
    assert changes == [("Pod", "serving")] * 2


@pytest.mark.parametrize(("address", "endpoint"), [("10.0.0.7", "10.0.0.7:8"), ("::1", "[::1]:8")])
def test_endpoints_are_what_urls_take(address: str, endpoint: str) -> None:
    store = Store(lambda *_: None)
    store.event("Pod", "ADDED", pod("a", names.NODE_COMPONENT, address, 8))
    assert store.world.views["Pod"]["n", "a"].endpoint == endpoint
