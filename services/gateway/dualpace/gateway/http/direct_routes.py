"""A short way to handlers that read their bodies themselves, past what only others need.

FastAPI resolves declared parameters, and stacks of contexts and error handlers for them, at every
request; a handler that takes nothing but the request has no use for these, and its answer is the
same without. Everything else, wrong methods included, goes to the application.
"""

import inspect

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from dualpace.gateway.errors import handle_exception


class DirectRoutes:
    """An ASGI application around another, whose routes it knows."""

    def __init__(self, app: ASGIApp, routes: dict[str, APIRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI scope."""
        posted = scope["type"] == "http" and scope["method"] == "POST"
        route = self._routes.get(scope["path"]) if posted else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route  # as routers do, for whoever counts by route
        request = Request(scope, receive)
        try:
            response = await route.endpoint(request)
        except Exception as error:  # noqa: BLE001 - told to the client, and to the log
            response = await handle_exception(request, error)
        await response(scope, receive, send)


def direct_routes(app: FastAPI) -> dict[str, APIRoute]:
    """Return, by path, the routes for POST whose handlers take the request alone."""
    return {
        route.path: route
        for route in app.routes
        if isinstance(route, APIRoute)
        and route.methods == {"POST"}
        and list(inspect.signature(route.endpoint).parameters) == ["request"]
    }
