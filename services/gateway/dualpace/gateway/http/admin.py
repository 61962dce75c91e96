"""The operator's port: metrics, probes, what the node is doing, and draining it.

It has no keys, and listens on the loopback interface unless told otherwise.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dualpace.gateway.errors import json_response
from dualpace.gateway.routes import health
from dualpace.gateway.serving import Gateway


def build_admin_app(gateway: Gateway, drain: Callable[[], None]) -> Starlette:
    """Return the ASGI application. `drain` begins to shut the gateway down."""

    async def state(_: Request) -> Response:
        return json_response(node_state(gateway))

    async def begin_drain(_: Request) -> Response:
        drain()
        return json_response({"status": "draining"}, 202)

    async def metrics(_: Request) -> Response:
        return health.metrics(gateway)

    async def live(_: Request) -> Response:
        return health.live()

    async def ready(_: Request) -> Response:
        return health.ready(gateway)

    return Starlette(
        routes=[
            Route("/state", state),
            Route("/drain", begin_drain, methods=["POST"]),
            Route("/metrics", metrics),
            Route("/livez", live),
            Route("/readyz", ready),
        ]
    )


def node_state(gateway: Gateway) -> dict[str, Any]:
    """Return what is going on, in numbers: no prompts, no keys."""
    engines = gateway.lifecycle.backend.engines()
    return {
        "unready_reason": gateway.lifecycle.unready_reason(),
        "waiting": {
            "generations": gateway.admission.num_requests,
            "prompt_tokens": gateway.admission.num_tokens,
        },
        "engines": {
            engine.name.lower(): {
                "connected": state.connected,
                "heartbeat_age_s": state.heartbeat_age_s,
                **state.gauges,
            }
            for engine, state in engines.items()
        },
    }


@asynccontextmanager
async def admin_server(app: Starlette, listener: socket.socket | None) -> AsyncIterator[None]:
    """Serve the application beside whatever runs in the context; no socket, no server."""
    if listener is None:
        yield
        return
    server = _AdminServer(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none"
        )
    )
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class _AdminServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the main server."""
        yield
