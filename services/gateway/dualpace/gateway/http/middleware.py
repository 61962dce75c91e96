"""Wraps the application, in plain ASGI: request ids, HTTP metrics, the access log.

Handlers put headers that every answer gets, errors included, into `state["headers"]`.
"""

import logging
import re
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualpace.core.clock import Clock
from dualpace.gateway.errors import CLIENT_CLOSED_REQUEST
from dualpace.gateway.random_ids import random_id
from dualpace.gateway.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_CONVERTER = re.compile(r":\w+}")
"""In a route's path: how a parameter is matched, which is no business of a reader of metrics."""
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_QUIET = frozenset({"/livez", "/readyz", "/health", "/ping", "/metrics"})


class RequestContext:
    """Gives every response an X-Request-Id, and counts and logs every request once it is over."""

    def __init__(self, app: ASGIApp, metrics: Metrics, clock: Clock) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin_s = self._clock.now()
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["request_id"] = _client_request_id(scope)
        more_headers: dict[str, str] = {}
        state["headers"] = more_headers
        # Parts of a body need nothing of what lies in between, and there may be very many.
        state["send_body"] = send
        status = CLIENT_CLOSED_REQUEST

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                state["request_id"] = state["request_id"] or random_id()
                more_headers["x-request-id"] = state["request_id"]
                added = [(k.encode("ascii"), v.encode("ascii")) for k, v in more_headers.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            # The application's error handler has logged and answered it, and raises it once more
            # for servers that would do so otherwise.
            if status == CLIENT_CLOSED_REQUEST:
                raise
        finally:
            self._over(scope, status, self._clock.now() - begin_s, state["request_id"])

    def _over(self, scope: Scope, status: int, seconds: float, request_id: str | None) -> None:
        handler = _CONVERTER.sub("}", getattr(scope.get("route"), "path", "other"))
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.http(handler, method, status, seconds)
        level = logging.DEBUG if handler in _QUIET else logging.INFO
        log.log(
            level,
            "%s %s %d in %.3f s",
            method,
            handler,
            status,
            seconds,
            extra={"request_id": request_id},
        )


def _client_request_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(text):
                return text
            log.debug("an X-Request-Id that is too long or not printable was replaced")
    return None
