"""Server-sent events as a response: frames, a comment when silent for long, late errors.

The response starts with the first frame or the first comment. A failure before that is an ordinary
error response, with a status that clients and proxies can act on.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dualpace.gateway.disconnect import settle, while_connected
from dualpace.gateway.errors import (
    ApiError,
    ClientDisconnectedError,
    encode_json,
    error_response,
    from_exception,
)

DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def frame(value: object) -> bytes:
    """Return one event. JSON has no line breaks of its own, so one data line is enough."""
    return b"data: " + encode_json(value) + b"\n\n"


def named_frame(name: str, value: object) -> bytes:
    """Return one event with a name of its own."""
    return b"event: " + name.encode() + b"\n" + frame(value)


class EventStream(Response):
    """Sends what a generator of frames yields, and closes it, also when the client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        ping_interval_s: float,
        late_error: Callable[[ApiError], bytes],
        on_disconnect: Callable[[], None],
    ) -> None:
        """late_error: makes the frame that tells of a failure once the stream has started."""
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers(_HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._ping_interval_s = ping_interval_s
        self._late_error = late_error
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
        pinger = asyncio.create_task(self._ping(writer))
        try:
            async with aclosing(self._frames):
                async for data in self._frames:
                    await writer.write(data)
        except ClientDisconnectedError:
            raise
        except Exception as exception:  # noqa: BLE001 - from_exception logs what is not meant for clients
            await settle(pinger)
            error = from_exception(exception)
            if not writer.started:
                await error_response(error)(scope, receive, send)
                return
            await writer.write(self._late_error(error))
        finally:
            await settle(pinger)
        await writer.finish()

    async def _ping(self, writer: "_Writer") -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait_s = writer.last_write_s + self._ping_interval_s - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            else:
                await writer.write(_PING)


class _Writer:
    """Writes parts of one response body, starting the response with the first.

    Two tasks write, so one waits while the other is at it: a ping may be on its way when text
    comes. Text never waits for anything else.
    """

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

    async def finish(self) -> None:
        await self.write(b"", more=False)

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
