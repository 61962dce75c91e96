"""Server-sent events as a response: frames, a comment when silent for long, late errors.

The response starts with the first frame or the first comment. A failure before that is an ordinary
error response, with a status that clients and proxies can act on.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dualpace.gateway.errors import (
    ApiError,
    ClientDisconnectedError,
    encode_json,
    error_response,
    from_exception,
)
from dualpace.gateway.http.disconnect import settle, while_connected

DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def frame(value: object) -> bytes:
    """Return one event. JSON has no line breaks of its own, so one data line is enough."""
    return b"data: " + encode_json(value) + b"\n\n"


def named_frame(name: str, value: object) -> bytes:
    """Return one event with a name of its own."""
    return b"event: " + name.encode() + b"\n" + frame(value)


class Looks(Protocol):
    """How a stream ends."""

    def ended(self) -> bytes:
        """Return its last frames."""
        ...

    def late_error(self, error: ApiError) -> bytes:
        """Return the frame that tells of a failure once it has started."""
        ...

    def in_own_words(self, error: ApiError) -> ApiError:
        """Return an error as clients are to be told of it."""
        ...


class EventStream(Response):
    """Sends what a generator of frames yields, and closes it, also when the client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[Sequence[bytes], None],
        looks: Looks,
        *,
        ping_interval_s: float,
        on_disconnect: Callable[[], None],
    ) -> None:
        """frames: what is there together is sent together."""
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers(_HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._looks = looks
        self._ping_interval_s = ping_interval_s
        self._on_disconnect = on_disconnect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; return when it is complete or the client has left."""
        writer = _Writer(send, scope["state"]["send_body"], self.raw_headers)
        try:
            await while_connected(receive, self._send_frames(writer, scope, receive, send))
        except ClientDisconnectedError:
            self._on_disconnect()

    async def _send_frames(
        self, writer: "_Writer", scope: Scope, receive: Receive, send: Send
    ) -> None:
        pings = _Pings(writer, self._ping_interval_s)
        try:
            async with aclosing(self._frames):
                async for data in self._frames:
                    await writer.write(data[0] if len(data) == 1 else b"".join(data))
            last = self._looks.ended()
        except ClientDisconnectedError:
            raise
        except Exception as exception:  # noqa: BLE001 - from_exception logs what is not meant for clients
            await pings.stop()
            error = self._looks.in_own_words(from_exception(exception))
            if not writer.started:
                await error_response(error)(scope, receive, send)
                return
            last = self._looks.late_error(error)
        finally:
            await pings.stop()
        await writer.write(last, more=False)


class _Pings:
    """Writes a comment whenever nothing was written for a while. Text does not reset any timer."""

    def __init__(self, writer: "_Writer", interval_s: float) -> None:
        self._writer = writer
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._writing: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(interval_s, self._look)

    async def stop(self) -> None:
        self._timer.cancel()
        if self._writing is not None:
            await settle(self._writing)

    def _look(self) -> None:
        wait_s = self._writer.last_write_s + self._interval_s - self._loop.time()
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._look)
        else:
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        await self._writer.write(_PING)
        self._timer = self._loop.call_later(self._interval_s, self._look)


class _Writer:
    """Writes parts of one response body, starting the response with the first.

    Two tasks write, so one waits while the other is at it: a ping may be on its way when text
    comes. Text never waits for anything else.
    """

    __slots__ = (
        "_headers",
        "_loop",
        "_send_part",
        "_send_start",
        "_sending",
        "_sent",
        "last_write_s",
        "started",
    )

    def __init__(self, send: Send, send_body: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send_start = send
        self._send_part = send_body
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        self._sending = False
        self._sent: asyncio.Future[None] | None = None
        """Made by whoever waits for the part that is being sent; done when it has been."""
        self.started = False
        self.last_write_s = self._loop.time()

    async def write(self, data: bytes, *, more: bool = True) -> None:
        while self._sending:
            await self._until_sent()
        self._sending = True
        # Noted before sending: a client that reads slowly needs no pings on top.
        self.last_write_s = self._loop.time()
        try:
            if not self.started:
                self.started = True
                start = {"type": "http.response.start", "status": 200, "headers": self._headers}
                await self._send_start(start)
            await self._send_part({"type": "http.response.body", "body": data, "more_body": more})
        except OSError:  # what ASGI servers may raise once the connection is gone
            raise ClientDisconnectedError("the client left while its answer was sent") from None
        finally:
            self._sending = False
            if self._sent is not None:
                self._sent.set_result(None)
                self._sent = None

    async def _until_sent(self) -> None:
        if self._sent is None:
            self._sent = self._loop.create_future()
        await asyncio.shield(self._sent)
