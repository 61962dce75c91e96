"""A gateway and two engines that may die at any moment, in one thread, without sockets or models.

The engines, the arena and what the gateway keeps of its requests are the real ones. Compute is not
(`mortal_compute`), and messages lie in queues until the caller delivers them (`mortal_wires`).
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualpace.core.messages import HandoffCommand, HandoffEvent
from dualpace.core.request import Engine, Request
from dualpace.cpu_engine.engine import CpuEngine
from dualpace.gateway.engines.backend import (
    GeneratedToken,
    GenerationEnd,
    GenerationEvent,
    GenerationStart,
)
from dualpace.gateway.engines.generation import NodeGeneration
from dualpace.gateway.engines.running import RunningRequests
from dualpace.gpu_engine.engine import GpuEngine
from dualpace.ipc.arena import Arena
from dualpace.ipc.channel import (
    CpuInput,
    DeviceJoined,
    DeviceLeft,
    GpuInput,
    HostJoined,
    HostLeft,
    Inbox,
)
from dualpace.scheduling.cpu import HostLimits, HostScheduler
from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.placement import placement_from_text
from dualpace.testing.clock import ManualClock
from dualpace.testing.mortal_compute import (
    BLOCK_SIZE,
    DeviceRunner,
    HostRunner,
    Killed,
    MortalSizes,
)
from dualpace.testing.mortal_wires import EnginesPort, GatewaysPort, Session, Wire
from dualpace.testing.two_schedulers import token_for

GATEWAY_ID = 7


@dataclass
class Process:
    """An engine's process."""

    engine: GpuEngine | CpuEngine
    arena: Arena
    inbox: Inbox[Any]
    incarnation: int
    sessions: int = 0
    """Handoff sessions so far."""


class MortalNode:
    """Everything happens when the caller says so."""

    def __init__(self, run_dir: Path, placement: str, sizes: MortalSizes) -> None:
        self._run_dir = run_dir
        self._placement = placement
        self._sizes = sizes
        self.clock = ManualClock()
        self.processes: dict[Engine, Process] = {}
        self.handoff: Session | None = None
        """The gpu-engine is its client."""
        self.sessions: dict[Engine, Session] = {}
        """Of the gateway, their client."""
        self._host_kv: dict[int, np.ndarray] = {}
        """By the arena's generation."""
        self._incarnations = 0
        self.messages_amid_steps = 0
        """How many of each kind reach an engine while it computes; then the host may step, too."""
        self.host_steps_amid_steps = False
        self.device_runner: DeviceRunner | None = None
        self.host_runner: HostRunner | None = None
        ports = {engine: GatewaysPort(self.sessions, engine) for engine in Engine}
        self.running = RunningRequests(GATEWAY_ID, ports, self.clock, engine_wait_s=1e9)
        self.generations: dict[int, NodeGeneration] = {}
        self.requests: dict[int, Request] = {}
        for engine in Engine:
            self.start(engine)
        self.join_all()

    # Processes.

    def start(self, engine: Engine) -> None:
        """Start an engine's process, if it is not there and could be by now."""
        if engine in self.processes:
            return
        self._incarnations += 1
        if engine is Engine.GPU:
            self._start_gpu()
        elif Engine.GPU in self.processes:
            self._start_cpu()

    def kill(self, engine: Engine, keep: int) -> None:
        """Kill a process; `keep` bounds what of each of its wires is sent before it dies."""
        process = self.processes.pop(engine, None)
        if process is None:
            return
        _let_go(process.arena)
        session = self.sessions.get(engine)
        if session is not None:
            session.to_client.end(keep)
            session.to_server.drop()
        if self.handoff is not None:
            written, read = self.handoff.to_server, self.handoff.to_client
            if engine is Engine.CPU:
                written, read = read, written
            if read.ended:
                self.handoff = None  # nobody is left to learn of it
                return
            written.end(keep)
            read.drop()

    def step(self, engine: Engine) -> None:
        """Let an engine step once, if it is there."""
        process = self.processes.get(engine)
        if process is None:
            return
        try:
            process.engine.step()
        except Killed:
            self.kill(engine, 0)

    # Sessions.

    def join_all(self) -> None:
        """Open every session that can be opened."""
        for engine in Engine:
            self.join_gateway(engine)
        self.join_handoff()

    def join_gateway(self, engine: Engine) -> None:
        """Let the gateway open a session, if it has none and the engine is there."""
        if engine in self.processes and engine not in self.sessions:
            self.sessions[engine] = Session(Wire(), Wire())
            self.running.engine_joined(engine, self.processes[engine].incarnation)

    def join_handoff(self) -> None:
        """Let the gpu-engine open a session with the cpu-engine, if both are there."""
        if self.handoff is None and len(self.processes) == len(Engine):
            gpu, cpu = self.processes[Engine.GPU], self.processes[Engine.CPU]
            if gpu.arena.generation == cpu.arena.generation:
                self.handoff = Session(Wire(), Wire())
                gpu.sessions, cpu.sessions = gpu.sessions + 1, cpu.sessions + 1
                cpu.inbox.put(DeviceJoined(cpu.sessions, gpu.incarnation))
                gpu.inbox.put(HostJoined(gpu.sessions))

    def deliver_to_engine(self, engine: Engine) -> None:
        """Deliver the gateway's oldest message to an engine."""
        session = self.sessions.get(engine)
        if session is not None and session.to_server.items and engine in self.processes:
            self.processes[engine].inbox.put(session.to_server.items.popleft())

    def deliver_to_gateway(self, engine: Engine) -> None:
        """Deliver an engine's oldest event, or the news of its death."""
        session = self.sessions.get(engine)
        if session is None:
            return
        if session.to_client.items:
            event = session.to_client.items.popleft()
            self.running.take(engine, [event])  # type: ignore[list-item]
        elif session.to_client.ended:
            del self.sessions[engine]
            self.running.engine_left(engine)

    def deliver_handoff(self, to: Engine) -> None:
        """Deliver the oldest message of the handoff, or the news of the other's death."""
        if self.handoff is None:
            return
        wire = self.handoff.to_client if to is Engine.GPU else self.handoff.to_server
        process = self.processes.get(to)
        if process is None:
            return
        if wire.items:
            process.inbox.put(wire.items.popleft())
        elif wire.ended:
            process.inbox.put(HostLeft() if to is Engine.GPU else DeviceLeft())
            self.handoff = None

    # Requests.

    def submit(self, request: Request) -> None:
        """Begin a request, if the gateway takes any."""
        if len(self.sessions) < len(Engine) or any(
            s.to_client.ended for s in self.sessions.values()
        ):
            return
        prompt = tuple(token_for(request.request_id, p) for p in range(request.prompt_tokens))
        self.requests[request.request_id] = request
        self.generations[request.request_id] = self.running.begin(request, prompt)

    def round(self) -> None:
        """Let everything happen once, fairly."""
        for engine in Engine:
            self.start(engine)
        self.join_all()
        for engine in Engine:
            for _ in range(len(Engine)):
                self._deliver_all(engine)
            self.step(engine)
        self.clock.advance(0.01)

    def settle(self, max_rounds: int = 500) -> None:
        """Let everything happen until no request is left and nothing is held."""
        for _ in range(max_rounds):
            self.round()
            if not len(self.running) and self.idle():
                return
        raise AssertionError(f"stuck with {len(self.running)} requests")

    def idle(self) -> bool:
        """Whether both engines are there, know of each other and hold nothing."""
        gpu, cpu = self.processes.get(Engine.GPU), self.processes.get(Engine.CPU)
        if gpu is None or cpu is None:
            return False
        held = [gpu.engine.gauges(), cpu.engine.gauges()]
        whole = all(
            g["sequences"] == 0
            and g["free_blocks"] == g["total_blocks"]
            and g["free_slots"] == g["total_slots"]
            for g in held
        )
        return whole and cpu.arena.sequences.owned_slots() == []

    def check_owners(self) -> None:
        """Assert that no running request is computed by both engines, and that books agree."""
        gpu, cpu = self._gpu_engine(), self._cpu_engine()
        if gpu is not None:
            gpu.scheduler.state.check_integrity()
        if cpu is not None:
            cpu.scheduler.check_integrity()
        if gpu is not None and cpu is not None:
            for sequence in gpu.scheduler.state.running:
                doubly = cpu.scheduler.owned(sequence.request_id) is not None
                assert not doubly or self.generations[sequence.request_id].done

    def _gpu_engine(self) -> GpuEngine | None:
        process = self.processes.get(Engine.GPU)
        engine = None if process is None else process.engine
        assert not isinstance(engine, CpuEngine)
        return engine

    def _cpu_engine(self) -> CpuEngine | None:
        process = self.processes.get(Engine.CPU)
        engine = None if process is None else process.engine
        assert not isinstance(engine, GpuEngine)
        return engine

    def tokens_of(self, request_id: int) -> tuple[list[int], GenerationEnd]:
        """Return what came of an ended request, checked for order."""
        events = asyncio.run(_collect(self.generations[request_id]))
        *tokens, end = [event for event in events if not isinstance(event, GenerationStart)]
        assert sum(isinstance(event, GenerationStart) for event in events) <= 1
        assert isinstance(end, GenerationEnd)
        first = self.requests[request_id].prompt_tokens
        ids: list[int] = []
        for position, token in enumerate(tokens, first):
            assert isinstance(token, GeneratedToken)
            assert token.position == position
            ids.append(token.token_id)
        return ids, end

    def close(self) -> None:
        """Let go of the arenas."""
        for process in self.processes.values():
            process.arena.close()

    def _deliver_all(self, engine: Engine) -> None:
        for _ in range(50):
            self.deliver_to_engine(engine)
            self.deliver_to_gateway(engine)
            self.deliver_handoff(engine)

    def _amid_a_device_step(self, engine: GpuEngine) -> None:
        if self.host_steps_amid_steps:
            self._amid_a_host_step()
            self.step(Engine.CPU)
        for _ in range(self.messages_amid_steps):
            self.deliver_to_engine(Engine.GPU)
            self.deliver_handoff(Engine.GPU)
        engine.between_stages()

    def _amid_a_host_step(self) -> None:
        for _ in range(self.messages_amid_steps):
            self.deliver_to_engine(Engine.CPU)
            self.deliver_handoff(Engine.CPU)

    def _kv(self, arena: Arena) -> np.ndarray:
        shape = (self._sizes.host_blocks, BLOCK_SIZE)
        return self._host_kv.setdefault(arena.generation, np.zeros(shape, np.int64))

    def _start_gpu(self) -> None:
        sizes = self._sizes
        arena = Arena.create(self._run_dir, sizes.geometry, bytes(32), join=True)
        inbox: Inbox[GpuInput] = Inbox()
        limits = GpuLimits(
            num_blocks=sizes.device_blocks,
            block_size=BLOCK_SIZE,
            max_running=sizes.max_running,
            token_budget=sizes.token_budget,
        )
        self.device_runner = DeviceRunner(sizes.device_blocks, self._kv(arena))
        engine = GpuEngine(
            scheduler=GpuScheduler(limits, placement_from_text(self._placement)),
            runner=self.device_runner,  # type: ignore[arg-type]
            arena=arena,
            inbox=inbox,
            gateways=EnginesPort(self.sessions, Engine.GPU),
            host=_HandoffPort(self, Engine.GPU),
            grammars=_NoGrammars(),
            clock=self.clock,
            max_model_len=min(sizes.device_blocks, sizes.host_blocks) * BLOCK_SIZE,
            vocab_size=1 << 20,
        )
        self.device_runner.meanwhile = lambda: self._amid_a_device_step(engine)
        self.processes[Engine.GPU] = Process(engine, arena, inbox, self._incarnations)

    def _start_cpu(self) -> None:
        sizes = self._sizes
        arena = Arena.attach(self._run_dir, bytes(32), timeout_s=0.0)
        inbox: Inbox[CpuInput] = Inbox()
        limits = HostLimits(
            num_blocks=sizes.host_blocks,
            block_size=BLOCK_SIZE,
            num_slots=sizes.slots,
            max_batch=sizes.max_batch,
            max_blocks_per_sequence=arena.geometry.max_blocks_per_sequence,
        )
        self.host_runner = HostRunner(arena, self._kv(arena))
        self.host_runner.meanwhile = self._amid_a_host_step
        engine = CpuEngine(
            scheduler=HostScheduler(limits),
            runner=self.host_runner,  # type: ignore[arg-type]
            arena=arena,
            inbox=inbox,
            gateways=EnginesPort(self.sessions, Engine.CPU),
            device=_HandoffPort(self, Engine.CPU),
            grammars=_NoGrammars(),
            clock=self.clock,
        )
        self.processes[Engine.CPU] = Process(engine, arena, inbox, self._incarnations)


@contextmanager
def mortal_node(placement: str, sizes: MortalSizes) -> Iterator[MortalNode]:
    """Run a node in a directory of its own."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dualpace-mortal-") as directory:
        node = MortalNode(Path(directory), placement, sizes)
        try:
            yield node
        finally:
            node.close()


class _HandoffPort:
    """An engine's way to the other."""

    def __init__(self, node: MortalNode, engine: Engine) -> None:
        self._node = node
        self._engine = engine

    def post(self, session: int, messages: Sequence[HandoffCommand | HandoffEvent]) -> None:
        handoff = self._node.handoff
        if handoff is not None and session == self._node.processes[self._engine].sessions:
            wire = handoff.to_server if self._engine is Engine.GPU else handoff.to_client
            wire.put(list(messages))


class _NoGrammars:
    def prepare(self, grammar: str, done: Callable[[], None]) -> None:
        raise NotImplementedError

    def ready(self, grammar: str) -> bool:
        raise NotImplementedError


async def _collect(generation: NodeGeneration) -> list[GenerationEvent]:
    return [event async for events in generation for event in events]


def _let_go(arena: Arena) -> None:
    """Do to an arena what the end of its process does."""
    os.close(arena._fd)  # noqa: SLF001
