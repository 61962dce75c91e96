"""The HTTP server process: listens, serves one application, drains when asked to stop, exits."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from dualpace.core.process import StopRequest
from dualpace.core.sockets import listen_tcp
from dualpace.gateway.grpc.front import grpc_server
from dualpace.gateway.http.admin import admin_server, build_admin_app
from dualpace.gateway.http.http_protocol import NoUpgrades
from dualpace.gateway.serving import Gateway
from dualpace.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

_KEEP_ALIVE_S = 75
"""Longer than proxies keep idle connections, so that we never close one as it is used."""
_CLOSE_TIMEOUT_S = 3
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def open_listener(settings: GatewaySettings) -> socket.socket:
    """Return the socket to serve on: the inherited one, or a new one. Raises SettingsError."""
    if settings.listen_fd is not None:
        return socket.socket(fileno=settings.listen_fd)
    return listen_tcp(settings.host, settings.port)


def open_admin_listener(settings: GatewaySettings) -> socket.socket | None:
    """Return the socket of the operator's port, if there is to be one. Raises SettingsError."""
    if settings.admin_port is None:
        return None
    return listen_tcp(settings.admin_host, settings.admin_port)


def uvicorn_config(app: ASGIApp, *, port: int = 0) -> uvicorn.Config:
    """Return how the gateway serves an application; `port` is for servers without a listener."""
    return uvicorn.Config(
        app,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        http=NoUpgrades,
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
    )


class GatewayServer(uvicorn.Server):
    """Drains on the first SIGTERM or SIGINT; a second one ends at once what still runs."""

    def __init__(
        self,
        app: ASGIApp,
        gateway: Gateway,
        listener: socket.socket,
        stop: StopRequest,
        *,
        admin_listener: socket.socket | None = None,
    ) -> None:
        super().__init__(uvicorn_config(app))
        self._lifecycle = gateway.lifecycle
        self._gateway = gateway
        self._listener = listener
        self._admin_listener = admin_listener
        self._grace_s = gateway.settings.drain_grace_s
        self._stop = stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._lifecycle.on_failure = self._exit
        stop.on_stop(self._stop_requested)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until asked to stop."""
        del sockets
        self._loop = asyncio.get_running_loop()
        if self._stop.requested:
            return
        admin = build_admin_app(self._gateway, lambda: self._stop.request("the admin port"))
        async with admin_server(admin, self._admin_listener), grpc_server(self._gateway):
            await super().serve([self._listener])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let the event loop take signals, between callbacks; uvicorn would take them anywhere."""
        loop = asyncio.get_running_loop()
        taken = threading.current_thread() is threading.main_thread()
        for number in _STOP_SIGNALS if taken else ():
            loop.add_signal_handler(number, self._stop.request, number.name)
        try:
            yield
        finally:
            for number in _STOP_SIGNALS if taken else ():
                loop.remove_signal_handler(number)

    def _stop_requested(self) -> None:
        """Called in the event loop or in another thread."""
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
