"""Wraps the application where traces are wanted: a span for each request that generates."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualpace.gateway.errors import CLIENT_CLOSED_REQUEST
from dualpace.gateway.telemetry.request_trace import traced
from dualpace.tracing import Tracing, names

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
}
"""Names of the GenAI conventions, by route."""
_PROPAGATED = (b"traceparent", b"tracestate")


class TracedRequests:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI scope."""
        operation = OPERATIONS.get(scope["path"]) if scope["type"] == "http" else None
        if operation is None:
            await self._app(scope, receive, send)
            return
        status = CLIENT_CLOSED_REQUEST

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with traced(self._tracing, operation, _trace_headers(scope)) as trace:
            trace.note({names.HTTP_METHOD: scope["method"], names.HTTP_ROUTE: scope["path"]})
            try:
                await self._app(scope, receive, watch)
            finally:
                trace.note({names.HTTP_STATUS: status})
                if status == CLIENT_CLOSED_REQUEST or status >= 500:
                    trace.fail(str(status))


def _trace_headers(scope: Scope) -> dict[str, str]:
    """Return the headers of W3C Trace Context; several of a name are one list."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in _PROPAGATED:
            key, text = name.decode("ascii"), value.decode("latin-1")
            found[key] = f"{found[key]},{text}" if key in found else text
    return found
