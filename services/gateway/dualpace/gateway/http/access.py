"""Lets in who has a key, in plain ASGI, before anything of a request is read. Probes need none."""

from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from dualpace.gateway.errors import error_response, unauthorized
from dualpace.gateway.limits.keys import ANYBODY, Client, KeyFile

_OPEN = frozenset({"/livez", "/readyz", "/health", "/ping", "/metrics"})


class Access:
    """Puts the `Client` into the request's state, or answers 401."""

    def __init__(self, app: ASGIApp, keys: KeyFile | None, refused: Callable[[], None]) -> None:
        self._app = app
        self._keys = keys
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI scope."""
        if scope["type"] == "http":
            client = self._client(scope)
            if client is None:
                self._refused()
                await error_response(unauthorized())(scope, receive, send)
                return
            scope.setdefault("state", {})["client"] = client
        await self._app(scope, receive, send)

    def _client(self, scope: Scope) -> Client | None:
        if self._keys is None or scope["path"] in _OPEN:
            return ANYBODY
        key = bearer_token(dict(scope["headers"]).get(b"authorization", b""))
        return None if key is None else self._keys.client(key)


def bearer_token(header: Any) -> str | None:
    """Return the token of an Authorization header, or None if it has another form."""
    scheme, _, token = bytes(header).decode("latin-1").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None
