"""How long a request may take: until its first token, by the operator; in all, by the client."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.requests import Request

from dualpace.gateway.engines.generation_group import GenerationGroup
from dualpace.gateway.errors import invalid, shorten, timed_out

TIMEOUT_HEADER = "x-dualpace-timeout-ms"
_MAX_TIMEOUT_MS = 86_400_000


@dataclass(slots=True)
class Deadlines:
    """Ends a group that takes too long. None: for ever."""

    first_token_s: float | None
    total_s: float | None

    @contextmanager
    def over(self, group: GenerationGroup) -> Iterator["FirstToken"]:
        """Watch a group while it runs."""
        loop = asyncio.get_running_loop()
        handles: list[asyncio.TimerHandle] = []

        def watch(seconds: float | None, what: str) -> asyncio.TimerHandle | None:
            if seconds is None:
                return None
            error = timed_out(f"The request had {what} after {seconds:g} s.")
            handle = loop.call_later(seconds, group.abort, error)
            handles.append(handle)
            return handle

        watch(self.total_s, "not ended")
        first = FirstToken(watch(self.first_token_s, "no token yet"))
        try:
            yield first
        finally:
            for handle in handles:
                handle.cancel()


class FirstToken:
    """Told when a request's first token comes."""

    def __init__(self, handle: asyncio.TimerHandle | None) -> None:
        self._handle = handle

    def came(self) -> None:
        """Note a token; only the first matters."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def client_timeout_s(request: Request) -> float | None:
    """Return how long the client would wait in all. Raises ApiError 400."""
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:12]) <= _MAX_TIMEOUT_MS:
        raise invalid(
            TIMEOUT_HEADER, f"must be 1 to {_MAX_TIMEOUT_MS} milliseconds (got {shorten(text, 40)})"
        )
    return int(text) / 1000
