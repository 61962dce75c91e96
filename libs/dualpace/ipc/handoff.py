"""The control channel of the handoff, both ends. Data goes through the arena, never through here.

The gpu-engine opens one session and keeps trying while the cpu-engine is not there. Commands and
events keep their order. Runs in each engine's IO thread; `post` may be called from any thread.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import grpc
import grpc.aio

from dualpace.core.errors import ProtocolError
from dualpace.core.messages import HandoffCommand, HandoffEvent
from dualpace.ipc.channel import DeviceJoined, DeviceLeft, HostJoined, HostLeft
from dualpace.ipc.codec import (
    PROTOCOL,
    decode_commands,
    decode_handoff_events,
    encode_commands,
    encode_handoff_events,
)
from dualpace.ipc.io_thread import IoThread
from dualpace.ipc.proto import engine_pb2 as pb
from dualpace.ipc.rpc import HandoffContext, make_channel, open_handoff_session

log = logging.getLogger(__name__)

_RETRY_S = 0.2


class HandoffServer:
    """The cpu-engine's end. Implements channel.HandoffEventPort."""

    def __init__(
        self,
        io: IoThread,
        arena_generation: int,
        receive: Callable[[HandoffCommand | DeviceJoined | DeviceLeft], None],
    ) -> None:
        self._io = io
        self._generation = arena_generation
        self._receive = receive
        self._outgoing: asyncio.Queue[pb.HandoffReply | None] | None = None
        self._session = 0
        """Counts the sessions so far."""

    def post(self, session: int, events: Sequence[HandoffEvent]) -> None:
        """Send events in order; dropped unless this session is still the open one."""
        self._io.call(self._send, session, encode_handoff_events(events))

    async def session(
        self, requests: AsyncIterator[pb.HandoffRequest], context: HandoffContext
    ) -> None:
        """Serve the gpu-engine until either side ends the stream."""
        first = await anext(requests, None)
        if first is None or not first.HasField("hello"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a session starts with a hello")
        if first.hello.protocol != PROTOCOL:
            detail = f"protocol {first.hello.protocol} is not {PROTOCOL}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        if first.hello.arena_generation != self._generation:
            detail = "the cpu-engine has another generation of the arena mapped"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        if self._outgoing is not None:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "a gpu-engine is connected")
        outgoing = self._outgoing = asyncio.Queue()
        self._session += 1
        outgoing.put_nowait(pb.HandoffReply())  # tells the client that it was accepted
        self._receive(DeviceJoined(self._session, first.hello.device))
        reader = asyncio.create_task(self._read(requests, outgoing))
        try:
            while (reply := await outgoing.get()) is not None:
                await context.write(reply)
        finally:
            reader.cancel()
            self._outgoing = None
            self._receive(DeviceLeft())

    async def _read(
        self,
        requests: AsyncIterator[pb.HandoffRequest],
        outgoing: asyncio.Queue[pb.HandoffReply | None],
    ) -> None:
        try:
            async for request in requests:
                for command in decode_commands(request):
                    self._receive(command)
        except ProtocolError as error:
            log.error("the gpu-engine sent nonsense, closing its session: %s", error)  # noqa: TRY400
        finally:
            outgoing.put_nowait(None)

    def _send(self, session: int, reply: pb.HandoffReply) -> None:
        if self._outgoing is not None and session == self._session:
            self._outgoing.put_nowait(reply)


class HandoffClient:
    """The gpu-engine's end. Implements channel.HandoffCommandPort."""

    def __init__(
        self,
        io: IoThread,
        socket: Path,
        arena_generation: int,
        receive: Callable[[HandoffEvent | HostJoined | HostLeft], None],
        *,
        incarnation: int = 0,
    ) -> None:
        self._io = io
        self._socket = socket
        self._generation = arena_generation
        self._incarnation = incarnation
        self._receive = receive
        self._outgoing: asyncio.Queue[pb.HandoffRequest] | None = None
        self._session = 0
        """Counts the sessions so far."""
        self._last_failure = ""

    def post(self, session: int, commands: Sequence[HandoffCommand]) -> None:
        """Send commands in order; dropped unless this session is still the open one."""
        self._io.call(self._send, session, encode_commands(commands))

    async def run(self) -> None:
        """Keep a session open until cancelled."""
        while True:
            channel = make_channel(self._socket)
            try:
                await self._one_session(channel)
            except grpc.aio.AioRpcError as error:
                self._note_failure(error)
            finally:
                await channel.close()
            await asyncio.sleep(_RETRY_S)

    async def _one_session(self, channel: grpc.aio.Channel) -> None:
        call = open_handoff_session(channel)
        hello = pb.HandoffHello(
            protocol=PROTOCOL, arena_generation=self._generation, device=self._incarnation
        )
        await call.write(pb.HandoffRequest(hello=hello))
        replies = aiter(call)
        if await anext(replies, None) is None:
            return  # ended before it began
        outgoing = self._outgoing = asyncio.Queue()
        writer = asyncio.create_task(_write_all(call, outgoing))
        self._last_failure = ""
        self._session += 1
        self._receive(HostJoined(self._session))
        log.info("handoff session with the cpu-engine is open")
        try:
            async for reply in replies:
                for event in decode_handoff_events(reply):
                    self._receive(event)
        finally:
            self._outgoing = None
            writer.cancel()
            self._receive(HostLeft())

    def _send(self, session: int, request: pb.HandoffRequest) -> None:
        if self._outgoing is not None and session == self._session:
            self._outgoing.put_nowait(request)

    def _note_failure(self, error: grpc.aio.AioRpcError) -> None:
        waiting = error.code() is grpc.StatusCode.UNAVAILABLE
        failure = "not there" if waiting else f"{error.code().name}: {error.details()}"
        if failure != self._last_failure:  # said once, not at every try
            level = logging.DEBUG if waiting else logging.WARNING
            log.log(level, "no session with the cpu-engine: %s", failure)
            self._last_failure = failure


async def _write_all(
    call: "grpc.aio.StreamStreamCall[pb.HandoffRequest, pb.HandoffReply]",
    outgoing: asyncio.Queue[pb.HandoffRequest],
) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(await outgoing.get())
