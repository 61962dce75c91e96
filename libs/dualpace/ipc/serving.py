"""Binds gRPC handlers to a Unix socket for as long as an engine runs."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import grpc.aio

from dualpace.ipc.io_thread import IoThread
from dualpace.ipc.rpc import address_of, make_server


@contextlib.contextmanager
def io_thread(name: str = "io") -> Iterator[IoThread]:
    """Run an IoThread; its tasks are cancelled at the end."""
    io = IoThread(name)
    io.start()
    try:
        yield io
    finally:
        io.stop()


@contextlib.contextmanager
def serve_socket(
    io: IoThread, socket: Path, handlers: Sequence[grpc.GenericRpcHandler]
) -> Iterator[None]:
    """Serve until the context ends; then open sessions are cut and the socket is removed."""

    async def start() -> grpc.aio.Server:
        server = make_server()
        server.add_generic_rpc_handlers(tuple(handlers))
        server.add_insecure_port(address_of(socket))
        await server.start()
        return server

    server = io.run(start())
    try:
        yield
    finally:
        io.run(server.stop(grace=None))
        socket.unlink(missing_ok=True)
