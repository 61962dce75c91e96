"""The two gRPC methods, typed, and what all their users set alike.

Sockets are Unix sockets of one node. There is no keep-alive: a peer that is merely stopped or slow
must not lose its session, and one that died is noticed by the kernel.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

import grpc
import grpc.aio

from dualpace.core.errors import SettingsError
from dualpace.core.sockets import MAX_SOCKET_PATH
from dualpace.ipc.proto import engine_pb2 as pb

_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
]
GPU_SOCKET = "gpu.sock"
CPU_SOCKET = "cpu.sock"
"""Names of the engines' sockets in a node's run directory."""
_ENGINE = "dualpace.engine.v1.Engine"
_HANDOFF = "dualpace.engine.v1.Handoff"

GatewayStream = grpc.aio.StreamStreamCall[pb.GatewayMessage, pb.EngineMessage]
HandoffStream = grpc.aio.StreamStreamCall[pb.HandoffRequest, pb.HandoffReply]
EngineContext = grpc.aio.ServicerContext[pb.GatewayMessage, pb.EngineMessage]
HandoffContext = grpc.aio.ServicerContext[pb.HandoffRequest, pb.HandoffReply]


def address_of(socket: Path) -> str:
    """Return gRPC's name of a Unix socket. Raises SettingsError for a path that is too long."""
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH:
        raise SettingsError(
            f"run_dir: {socket} is too long for a Unix socket, which has {MAX_SOCKET_PATH} bytes"
        )
    return f"unix:{quote(os.fsencode(socket))}"  # gRPC reads it as a URI


def make_server() -> grpc.aio.Server:
    """Create a server; handlers and address come next."""
    return grpc.aio.server(options=_OPTIONS)


def make_channel(socket: Path) -> grpc.aio.Channel:
    """Create a channel to a Unix socket. The proxy variables of the environment do not matter."""
    options = [*_OPTIONS, ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(address_of(socket), options=options)


def engine_handler(
    session: Callable[[AsyncIterator[pb.GatewayMessage], EngineContext], Awaitable[None]],
) -> grpc.GenericRpcHandler:
    """Return the handler of Engine.Session."""
    method = grpc.stream_stream_rpc_method_handler(
        session,
        request_deserializer=pb.GatewayMessage.FromString,
        response_serializer=pb.EngineMessage.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_ENGINE, {"Session": method})


def handoff_handler(
    session: Callable[[AsyncIterator[pb.HandoffRequest], HandoffContext], Awaitable[None]],
) -> grpc.GenericRpcHandler:
    """Return the handler of Handoff.Session."""
    method = grpc.stream_stream_rpc_method_handler(
        session,
        request_deserializer=pb.HandoffRequest.FromString,
        response_serializer=pb.HandoffReply.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_HANDOFF, {"Session": method})


def open_engine_session(channel: grpc.aio.Channel) -> GatewayStream:
    """Call Engine.Session."""
    call: grpc.aio.StreamStreamMultiCallable[pb.GatewayMessage, pb.EngineMessage]
    call = channel.stream_stream(
        f"/{_ENGINE}/Session",
        request_serializer=pb.GatewayMessage.SerializeToString,
        response_deserializer=pb.EngineMessage.FromString,
    )
    return call()


def open_handoff_session(channel: grpc.aio.Channel) -> HandoffStream:
    """Call Handoff.Session."""
    call: grpc.aio.StreamStreamMultiCallable[pb.HandoffRequest, pb.HandoffReply]
    call = channel.stream_stream(
        f"/{_HANDOFF}/Session",
        request_serializer=pb.HandoffRequest.SerializeToString,
        response_deserializer=pb.HandoffReply.FromString,
    )
    return call()
