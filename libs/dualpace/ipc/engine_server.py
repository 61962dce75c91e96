"""The gateways' side of an engine: one session a gateway, tokens out, submissions in.

Runs in the engine's IO thread. `post` and `post_status` may be called from any thread.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from dualpace.core.errors import ProtocolError
from dualpace.core.messages import EngineEvent
from dualpace.core.request import Engine
from dualpace.ipc.channel import GatewayInput, GatewayLeft
from dualpace.ipc.codec import PROTOCOL, decode_gateway_message, encode_events
from dualpace.ipc.io_thread import IoThread
from dualpace.ipc.proto import engine_pb2 as pb
from dualpace.ipc.rpc import EngineContext

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine says of itself when a gateway connects."""

    engine: Engine
    model_fingerprint: bytes
    max_model_len: int
    """Most tokens a request may have, prompt and generation together."""
    vocab_size: int
    max_request_bytes: int
    """Most bytes that a request may have in the encoding of `ipc.codec`, its prompt apart."""
    incarnation: int = field(default_factory=lambda: secrets.randbits(63))
    """Tells this process from the one before it and the one after it."""


class EngineServer:
    """Sessions of one engine. Implements channel.GatewayPort."""

    def __init__(
        self, io: IoThread, facts: EngineFacts, receive: Callable[[GatewayInput], None]
    ) -> None:
        self._io = io
        self._facts = facts
        self._receive = receive
        self._outgoing: dict[int, asyncio.Queue[pb.EngineMessage | None]] = {}

    @property
    def num_sessions(self) -> int:
        """Gateways connected now."""
        return len(self._outgoing)

    def post(self, events: Sequence[EngineEvent]) -> None:
        """Send each event to its gateway; those of gateways that left are dropped."""
        by_gateway: dict[int, list[EngineEvent]] = {}
        for event in events:
            by_gateway.setdefault(event.gateway_id, []).append(event)
        for gateway_id, batch in by_gateway.items():
            self._io.call(self._send, gateway_id, encode_events(batch))

    def post_status(self, gauges: Mapping[str, float]) -> None:
        """Send the engine's numbers to every gateway."""
        message = pb.EngineMessage(status=pb.EngineStatus(gauges=gauges))
        self._io.call(self._broadcast, message)

    async def session(
        self, messages: AsyncIterator[pb.GatewayMessage], context: EngineContext
    ) -> None:
        """Serve one gateway until either side ends the stream."""
        first = await anext(messages, None)
        if first is None or first.WhichOneof("body") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a session starts with a hello")
        hello = first.hello
        if hello.protocol != PROTOCOL:
            detail = f"protocol {hello.protocol} is not {PROTOCOL}: run the same release everywhere"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        if hello.gateway_id in self._outgoing:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "this gateway id is connected")
        outgoing: asyncio.Queue[pb.EngineMessage | None] = asyncio.Queue()
        self._outgoing[hello.gateway_id] = outgoing
        reader = asyncio.create_task(self._read(messages, hello.gateway_id, outgoing))
        log.info("gateway %x connected", hello.gateway_id)
        try:
            await context.write(self._welcome())
            while (message := await outgoing.get()) is not None:
                await context.write(message)
        finally:
            reader.cancel()
            del self._outgoing[hello.gateway_id]
            self._receive(GatewayLeft(hello.gateway_id))
            log.info("gateway %x disconnected", hello.gateway_id)

    async def _read(
        self,
        messages: AsyncIterator[pb.GatewayMessage],
        gateway_id: int,
        outgoing: asyncio.Queue[pb.EngineMessage | None],
    ) -> None:
        try:
            async for message in messages:
                self._receive(decode_gateway_message(message, gateway_id))
        except ProtocolError as error:
            log.error("a gateway sent nonsense, closing its session: %s", error)  # noqa: TRY400
        finally:
            outgoing.put_nowait(None)

    def _welcome(self) -> pb.EngineMessage:
        return pb.EngineMessage(
            welcome=pb.EngineWelcome(
                protocol=PROTOCOL,
                engine=self._facts.engine,
                model_fingerprint=self._facts.model_fingerprint,
                max_model_len=self._facts.max_model_len,
                vocab_size=self._facts.vocab_size,
                max_request_bytes=self._facts.max_request_bytes,
                incarnation=self._facts.incarnation,
            )
        )

    def _send(self, gateway_id: int, message: pb.EngineMessage) -> None:
        outgoing = self._outgoing.get(gateway_id)
        if outgoing is not None:
            outgoing.put_nowait(message)

    def _broadcast(self, message: pb.EngineMessage) -> None:
        for outgoing in self._outgoing.values():
            outgoing.put_nowait(message)
