"""The HTTP server process: listens, serves one application, drains when asked to stop, exits."""

import asyncio
import logging
import signal
import socket
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from dualpace.core.process import StopRequest
from dualpace.gateway.lifecycle import Lifecycle
from dualpace.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

_KEEP_ALIVE_S = 75
"""Longer than proxies keep idle connections, so that we never close one as it is used."""
_CLOSE_TIMEOUT_S = 3


class GatewayServer(uvicorn.Server):
    """Drains on the first SIGTERM or SIGINT; a second one ends at once what still runs."""

    def __init__(
        self, app: ASGIApp, lifecycle: Lifecycle, settings: GatewaySettings, stop: StopRequest
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                ws="none",
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
            )
        )
        self._lifecycle = lifecycle
        self._grace_s = settings.drain_grace_s
        self._listen_fd = settings.listen_fd
        self._stop = stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        lifecycle.on_failed_start = self._exit
        stop.on_stop(self._stop_requested)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until asked to stop."""
        self._loop = asyncio.get_running_loop()
        if self._listen_fd is not None:
            sockets = [socket.socket(fileno=self._listen_fd)]
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal. Not noting it as uvicorn would keeps the exit status 0."""
        del frame
        self._stop.request(signal.Signals(sig).name)

    def _stop_requested(self) -> None:
        """Called from a signal handler or another thread."""
        if self._loop is None:  # not serving yet
            self._exit()
        else:
            self._loop.call_soon_threadsafe(self._on_stop)

    def _on_stop(self) -> None:
        if self._draining is None and not self._stop.urgent:
            log.info("stopping: %s", self._stop.reason)
            self._draining = asyncio.create_task(self._drain())
        else:
            self._lifecycle.abort_all()
            self._exit()

    async def _drain(self) -> None:
        await self._lifecycle.drain(self._grace_s)
        self._exit()

    def _exit(self) -> None:
        self.should_exit = True
