"""A gateway's side of one engine: keeps a session open, sends in order, hands over what arrives.

Runs in the gateway's event loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio

from dualpace.core.errors import ProtocolError
from dualpace.core.messages import EngineEvent, GatewayWord
from dualpace.core.request import Engine
from dualpace.ipc.codec import PROTOCOL, decode_events, encode_gateway_message
from dualpace.ipc.engine_server import EngineFacts
from dualpace.ipc.proto import engine_pb2 as pb
from dualpace.ipc.rpc import GatewayStream, make_channel, open_engine_session

log = logging.getLogger(__name__)

_RETRY_S = 0.2


class EngineListener(Protocol):
    """Who owns a client. Called in the event loop; must not block."""

    def engine_joined(self, facts: EngineFacts) -> None:
        """A session is open, and may be sent to. Raises ProtocolError to refuse it for good."""
        ...

    def engine_left(self, engine: Engine) -> None:
        """The session is gone; another try follows."""
        ...

    def engine_events(self, engine: Engine, events: Sequence[EngineEvent]) -> None:
        """Tokens and ends, in the engine's order."""
        ...

    def engine_status(self, engine: Engine, gauges: Mapping[str, float]) -> None:
        """The engine's numbers; a sign of life of its compute loop."""
        ...


class EngineClient:
    """One engine, seen from a gateway."""

    def __init__(
        self, engine: Engine, socket: Path, gateway_id: int, listener: EngineListener
    ) -> None:
        self._engine = engine
        self._socket = socket
        self._gateway_id = gateway_id
        self._listener = listener
        self._outgoing: asyncio.Queue[pb.GatewayMessage] | None = None
        self._last_failure = ""

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        return self._outgoing is not None

    def send(self, message: GatewayWord) -> None:
        """Queue a message; dropped when there is no session."""
        if self._outgoing is not None:
            self._outgoing.put_nowait(encode_gateway_message(message))

    async def run(self) -> None:
        """Keep a session open until cancelled. Raises ProtocolError if the engine is refused."""
        while True:
            channel = make_channel(self._socket)
            try:
                await self._one_session(channel)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    raise ProtocolError(
                        f"{self._engine.name.lower()}-engine: {error.details()}"
                    ) from error
                self._note_failure(error)
            finally:
                await channel.close()
            await asyncio.sleep(_RETRY_S)

    async def _one_session(self, channel: grpc.aio.Channel) -> None:
        call = open_engine_session(channel)
        hello = pb.GatewayHello(gateway_id=self._gateway_id, protocol=PROTOCOL)
        await call.write(pb.GatewayMessage(hello=hello))
        incoming = aiter(call)
        first = await anext(incoming, None)
        if first is None:
            return  # ended before it began
        welcome = first.welcome
        facts = EngineFacts(
            engine=Engine(welcome.engine),
            model_fingerprint=welcome.model_fingerprint,
            max_model_len=welcome.max_model_len,
            vocab_size=welcome.vocab_size,
            max_request_bytes=welcome.max_request_bytes,
            incarnation=welcome.incarnation,
        )
        if facts.engine is not self._engine:
            raise ProtocolError(f"{self._socket} is the socket of the other engine")
        outgoing = self._outgoing = asyncio.Queue()
        try:
            self._listener.engine_joined(facts)
        except ProtocolError:
            self._outgoing = None
            raise
        writer = asyncio.create_task(_write_all(call, outgoing))
        self._last_failure = ""
        try:
            async for message in incoming:
                self._take(message)
        finally:
            self._outgoing = None
            writer.cancel()
            self._listener.engine_left(self._engine)

    def _take(self, message: pb.EngineMessage) -> None:
        if message.events:
            events = decode_events(message, self._gateway_id)
            self._listener.engine_events(self._engine, events)
        if message.HasField("status"):
            self._listener.engine_status(self._engine, dict(message.status.gauges))

    def _note_failure(self, error: grpc.aio.AioRpcError) -> None:
        waiting = error.code() is grpc.StatusCode.UNAVAILABLE
        failure = "not there" if waiting else f"{error.code().name}: {error.details()}"
        if failure != self._last_failure:  # said once, not at every try
            level = logging.DEBUG if waiting else logging.WARNING
            log.log(level, "no session with the %s-engine: %s", self._engine.name.lower(), failure)
            self._last_failure = failure


async def _write_all(call: GatewayStream, outgoing: asyncio.Queue[pb.GatewayMessage]) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(await outgoing.get())
