"""Requests to the API server: list, apply, create, delete, status. One session, retried politely.

Watching and finding credentials are kopf's; this takes the same credentials. It knows no kinds
beyond what it is given, and keeps no state but the connection.
"""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any

import aiohttp
import kopf

from dualpace.operator.errors import ApiError
from dualpace.operator.names import FIELD_MANAGER

log = logging.getLogger(__name__)

_CHUNK = 250
_TIMEOUT_S = 60.0
_RETRIES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_RETRIED = frozenset({429, 500, 502, 503, 504})


class ApiClient:
    """An asynchronous context manager. `login` finds credentials, and finds them anew on 401."""

    def __init__(self, login: Callable[[], kopf.ConnectionInfo]) -> None:
        self._login = login
        self._session: aiohttp.ClientSession | None = None
        self._info: kopf.ConnectionInfo | None = None
        self._ssl: ssl.SSLContext | None = None
        self.num_requests = 0
        """Requests sent, retries included."""

    async def __aenter__(self) -> "ApiClient":
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        self._session = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Any:
        """Send one request; returns the parsed answer.

        Raises ApiError for a refusal, and once trying again has not helped against an overloaded
        or unreachable server. Every request here can be repeated without harm.
        """
        for pause_s in (*_RETRIES_S, None):
            try:
                return await self._once(method, path, body, content_type, params)
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                status = error.status if isinstance(error, ApiError) else 0
                if status == 401:
                    self._info = None
                elif isinstance(error, ApiError) and status not in _RETRIED:
                    raise
                if pause_s is None:
                    raise ApiError(status, str(error) or type(error).__name__) from None
                log.debug("%s %s: %s; again in %g s", method, path, error, pause_s)
                await asyncio.sleep(pause_s)
        raise AssertionError

    async def _once(
        self,
        method: str,
        path: str,
        body: Any,
        content_type: str,
        params: Mapping[str, str] | None,
    ) -> Any:
        assert self._session is not None
        if self._info is None:
            self._info = self._login()
            self._ssl = self._info.as_ssl_context() if _is_tls(self._info) else None
        self.num_requests += 1
        headers = {**self._info.as_http_headers(), "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        async with self._session.request(
            method,
            self._info.server.rstrip("/") + path,
            data=data,
            params=dict(params or {}),
            headers=headers,
            ssl=self._ssl if self._ssl is not None else True,
        ) as response:
            text = await response.text()
            if response.status >= 400:
                raise ApiError(response.status, _message(text, response.status))
            return json.loads(text) if text else None

    async def list_all(self, path: str, selector: str = "") -> AsyncIterator[dict[str, Any]]:
        """Yield all objects of a collection, in chunks."""
        params = {"limit": str(_CHUNK)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self.request("GET", path, params=params)
            for item in page.get("items") or ():
                yield item
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            params = {**params, "continue": token}

    async def apply(self, path: str, manifest: Mapping[str, Any]) -> Any:
        """Server-side apply; ours wins over other writers of the same fields."""
        return await self.request(
            "PATCH",
            path,
            body=manifest,
            content_type="application/apply-patch+yaml",
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
        )


def _is_tls(info: kopf.ConnectionInfo) -> bool:
    return info.server.startswith("https:")


def _message(text: str, status: int) -> str:
    """Return the server's sentence out of its Status object."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()[:256] or f"HTTP status {status}"
