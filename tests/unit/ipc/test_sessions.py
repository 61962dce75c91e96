"""Sessions over real Unix sockets.

Order, refusals, and what each side learns when the other goes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dualpace.core.errors import ProtocolError, SettingsError
from dualpace.core.messages import (
    Ask,
    Cancel,
    EngineEvent,
    Finished,
    GatewayWord,
    HandoffCommand,
    HandoffEvent,
    Live,
    Recall,
    Release,
    Reserve,
    Submit,
    TokenEvent,
)
from dualpace.core.request import Engine, Request
from dualpace.ipc.channel import DeviceJoined, DeviceLeft, GatewayLeft, HostJoined, HostLeft
from dualpace.ipc.engine_client import EngineClient
from dualpace.ipc.engine_server import EngineFacts, EngineServer
from dualpace.ipc.handoff import HandoffClient, HandoffServer
from dualpace.ipc.io_thread import IoThread
from dualpace.ipc.proto import engine_pb2 as pb
from dualpace.ipc.rpc import engine_handler, handoff_handler, make_channel, open_engine_session
from dualpace.ipc.serving import io_thread, serve_socket

FACTS = EngineFacts(
    engine=Engine.GPU,
    model_fingerprint=b"f" * 32,
    max_model_len=100,
    max_request_bytes=4096,
    vocab_size=50,
)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def has_count(items: Sequence[object], item: object, count: int) -> bool:
    return items.count(item) == count


class Listener:
    """Records what an EngineClient says."""

    def __init__(self) -> None:
        self.facts: list[EngineFacts] = []
        self.left = 0
        self.events: list[EngineEvent] = []
        self.gauges: list[Mapping[str, float]] = []

    def engine_joined(self, facts: EngineFacts) -> None:
        self.facts.append(facts)

    def engine_left(self, engine: Engine) -> None:
        del engine
        self.left += 1

    def engine_events(self, engine: Engine, events: Sequence[EngineEvent]) -> None:
        del engine
        self.events.extend(events)

    def engine_status(self, engine: Engine, gauges: Mapping[str, float]) -> None:
        del engine
        self.gauges.append(gauges)


@pytest.fixture
def io() -> Iterator[IoThread]:
    with io_thread() as thread:
        yield thread


def make_submit(request_id: int) -> Submit:
    request = Request(request_id=request_id, gateway_id=1, prompt_tokens=2, max_tokens=3)
    return Submit(request, (4, 5))


def test_gateway_and_engine_hear_each_other_in_order(io: IoThread, tmp_path: Path) -> None:
    received: list[object] = []
    server = EngineServer(io, FACTS, received.append)
    listener = Listener()
    client = EngineClient(Engine.GPU, tmp_path / "s", 1, listener)
    io.spawn(client.run())  # before the engine is there: it keeps trying
    with serve_socket(io, tmp_path / "s", (engine_handler(server.session),)):
        wait_for(lambda: client.connected)
        assert listener.facts == [FACTS]
        words: list[GatewayWord] = [Live(1, (3, 4)), Ask(1, 4, 7, 33, 9), Cancel(3)]
        sent: list[GatewayWord] = [*map(make_submit, range(50)), *words]
        for message in sent:
            io.call(client.send, message)
        wait_for(lambda: len(received) == len(sent))
        assert received == sent
        tokens = [TokenEvent(1, 7, p, p) for p in range(200)]
        for token in tokens:
            server.post([token, TokenEvent(2, 7, 0, 0)])  # gateway 2 is not connected
        server.post_status({"running": 3.0})
        wait_for(lambda: bool(listener.gauges))
        assert listener.events == tokens
        assert listener.gauges == [{"running": 3.0}]
    wait_for(lambda: listener.left == 1)
    assert received[-1] == GatewayLeft(1)
    assert not client.connected


@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b", "a?b", "ü", "a:b"])
def test_sockets_may_lie_in_any_folder(io: IoThread, tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "s"
    path.parent.mkdir()
    server = EngineServer(io, FACTS, lambda _: None)
    client = EngineClient(Engine.GPU, path, 1, Listener())
    io.spawn(client.run())
    with serve_socket(io, path, (engine_handler(server.session),)):
        assert path.is_socket()
        wait_for(lambda: client.connected)


def test_a_path_too_long_for_a_socket_is_named(io: IoThread, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 107)
    with pytest.raises(SettingsError, match="too long"), serve_socket(io, path, ()):
        pass


def test_an_engine_notices_a_gateway_that_goes(io: IoThread, tmp_path: Path) -> None:
    received: list[object] = []
    server = EngineServer(io, FACTS, received.append)
    with serve_socket(io, tmp_path / "s", (engine_handler(server.session),)):
        with io_thread("gateway") as gateway_io:
            client = EngineClient(Engine.GPU, tmp_path / "s", 9, Listener())
            gateway_io.spawn(client.run())
            wait_for(lambda: server.num_sessions == 1)
        wait_for(lambda: received == [GatewayLeft(9)])
        assert server.num_sessions == 0


def test_a_client_refuses_the_other_engines_socket(io: IoThread, tmp_path: Path) -> None:
    server = EngineServer(io, FACTS, lambda _: None)
    client = EngineClient(Engine.CPU, tmp_path / "s", 1, Listener())
    with (
        serve_socket(io, tmp_path / "s", (engine_handler(server.session),)),
        pytest.raises(ProtocolError, match="socket of the other engine"),
    ):
        io.run(client.run())


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (pb.GatewayMessage(cancel=pb.Cancel()), grpc.StatusCode.INVALID_ARGUMENT),
        (
            pb.GatewayMessage(hello=pb.GatewayHello(gateway_id=1, protocol=99)),
            grpc.StatusCode.FAILED_PRECONDITION,
        ),
    ],
)
def test_a_wrong_start_ends_a_session(
    io: IoThread, tmp_path: Path, first: pb.GatewayMessage, code: grpc.StatusCode
) -> None:
    async def attempt() -> grpc.StatusCode:
        async with make_channel(tmp_path / "s") as channel:
            call = open_engine_session(channel)
            await call.write(first)
            try:
                async for _ in call:
                    pass
            except grpc.aio.AioRpcError:
                pass
            return await call.code()

    server = EngineServer(io, FACTS, lambda _: None)
    with serve_socket(io, tmp_path / "s", (engine_handler(server.session),)):
        assert io.run(attempt()) is code
        assert server.num_sessions == 0


def test_the_handoff_channel_keeps_order_and_survives_a_restart(
    io: IoThread, tmp_path: Path
) -> None:
    on_host: list[HandoffCommand | DeviceJoined | DeviceLeft] = []
    on_device: list[HandoffEvent | HostJoined | HostLeft] = []
    client = HandoffClient(io, tmp_path / "s", 5, on_device.append, incarnation=33)
    io.spawn(client.run())
    for round_number in (1, 2):
        server = HandoffServer(io, 5, on_host.append)
        with serve_socket(io, tmp_path / "s", (handoff_handler(server.session),)):
            wait_for(partial(has_count, on_device, HostJoined(round_number), 1))
            commands: list[HandoffCommand] = [Reserve(1, 9), Release(1), Recall(2)]
            for command in commands:
                client.post(round_number, [command])
                client.post(round_number - 1, [Recall(99)])  # of a session that is over
            wait_for(lambda: on_host[-1] == Recall(2))
            assert on_host[-4:] == [DeviceJoined(1, 33), *commands]
            server.post(0, [Finished(99)])
            server.post(1, [Finished(1), Finished(2)])
            wait_for(lambda: on_device[-1] == Finished(2))
        wait_for(partial(has_count, on_device, HostLeft(), round_number))
        assert on_host[-1] == DeviceLeft()
        assert Recall(99) not in on_host
        assert Finished(99) not in on_device
        on_host.append(Recall(0))  # so that the next round waits for its own


def test_the_handoff_refuses_another_arena(io: IoThread, tmp_path: Path) -> None:
    received: list[object] = []
    server = HandoffServer(io, 5, received.append)
    client = HandoffClient(io, tmp_path / "s", 6, received.append)
    with serve_socket(io, tmp_path / "s", (handoff_handler(server.session),)):
        io.spawn(client.run())
        time.sleep(0.5)
    assert received == []
