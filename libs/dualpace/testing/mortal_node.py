"""A gateway and two engines that may die at any moment, in one thread, without sockets or models.

The engines, the arena and what the gateway keeps of its requests are the real ones. Compute is not:
a token is a function of request and position, and the KV of a position is a number that follows
from both, so that whoever attends to a wrong or overwritten block is caught. Messages between
processes lie in queues until the caller delivers them; what a process has not sent when it dies is
lost, and so is what has not reached it.
"""

import asyncio
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualpace.core.blocks import blocks_for
from dualpace.core.messages import EngineEvent, GatewayWord, HandoffCommand, HandoffEvent
from dualpace.core.request import Engine, Request
from dualpace.cpu_engine.engine import CpuEngine
from dualpace.gateway.backend import GeneratedToken, GenerationEnd, GenerationEvent
from dualpace.gateway.generation import NodeGeneration
from dualpace.gateway.running import RunningRequests
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
from dualpace.ipc.layout import ArenaGeometry, KvDtype
from dualpace.models.host_step import Interruption
from dualpace.scheduling.cpu import HostLimits, HostScheduler
from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.placement import placement_from_text
from dualpace.scheduling.plan import GpuPlan, HostPlan, Sample, TableWrite
from dualpace.testing.clock import ManualClock
from dualpace.testing.two_schedulers import token_for

GATEWAY_ID = 7
_BLOCK_SIZE = 16


class Killed(Exception):  # noqa: N818 - no error: what SIGKILL looks like from within
    """The process that runs dies here."""


@dataclass(frozen=True, kw_only=True)
class MortalSizes:
    """Memory and batch limits."""

    device_blocks: int = 8
    host_blocks: int = 8
    max_running: int = 3
    token_budget: int = 24
    slots: int = 4
    max_batch: int = 4


class Wire:
    """One direction of a session. It ends with the process at either end."""

    def __init__(self) -> None:
        self.items: deque[object] = deque()
        self.closed = False
        """Nothing more is put in."""
        self.ended = False
        """Its writer is dead: its reader is to learn of that."""

    def put(self, items: Sequence[object]) -> None:
        """Send; in vain if the other end is gone."""
        if not self.closed:
            self.items.extend(items)

    def end(self, keep: int) -> None:
        """Its writer died: all but the first `keep` items are lost."""
        self.closed = self.ended = True
        while len(self.items) > keep:
            self.items.pop()

    def drop(self) -> None:
        """Its reader died."""
        self.closed = True
        self.items.clear()


@dataclass
class Session:
    """Two wires; the side that outlives the other notices once the wire to it is drained."""

    to_server: Wire
    to_client: Wire


def kv_of(request_id: int, position: int) -> int:
    """The number that stands for the KV of a position."""
    return request_id * 100_003 + position + 1


class DeviceRunner:
    """Fake compute of the gpu-engine; copies happen when they are said to be complete."""

    def __init__(self, sizes: MortalSizes, host_kv: np.ndarray) -> None:
        self.copies_complete = True
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens elsewhere while an iteration is computed."""
        self._kv = np.zeros((sizes.device_blocks, _BLOCK_SIZE), np.int64)
        self._host_kv = host_kv
        self._copies: list[tuple[int, Callable[[], None]]] = []

    def execute(self, plan: GpuPlan) -> list[Sample]:
        """Check what rows attend to, and make their tokens."""
        for copy in plan.copies_out:
            self._copy(copy.request_id, self._kv, copy.device_blocks, copy.host_blocks)
        for copy in plan.copies_in:
            self._copy(copy.request_id, self._host_kv, copy.host_blocks, copy.device_blocks)
        self.meanwhile()
        for row in plan.rows:
            for position in range(row.start, row.start + len(row.tokens)):
                _put(self._kv, row.blocks, position, kv_of(row.request_id, position))
            _check(self._kv, row.blocks, row.request_id, row.start + len(row.tokens))
            if row.stream_to is not None:
                used = blocks_for(row.start + len(row.tokens), _BLOCK_SIZE)
                self._copy(row.request_id, self._kv, row.blocks[:used], row.stream_to)
        return [
            Sample(row.request_id, token_for(row.request_id, row.start + len(row.tokens)))
            for row in plan.rows
            if row.samples
        ]

    def completed_transfers(self) -> list[int]:
        """Carry copies out, if they are to be complete."""
        if not self.copies_complete:
            return []
        done, self._copies = self._copies, []
        for _, carry_out in done:
            carry_out()
        return [request_id for request_id, _ in done]

    def _copy(
        self, request_id: int, source: np.ndarray, from_: Sequence[int], to: Sequence[int]
    ) -> None:
        target = self._host_kv if source is self._kv else self._kv
        pairs = list(zip(from_, to, strict=False))

        def carry_out() -> None:
            for one, other in pairs:
                target[other] = source[one]

        self._copies.append((request_id, carry_out))


class HostRunner:
    """Fake compute of the cpu-engine, which commits its steps as the real one does."""

    def __init__(self, arena: Arena, host_kv: np.ndarray) -> None:
        self.dies_after: int | None = None
        """Die in the next step when this many rows have been committed."""
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens elsewhere while a step is computed."""
        self._arena = arena
        self._kv = host_kv

    def write_tables(self, writes: tuple[TableWrite, ...]) -> None:
        """Enter newly held blocks into the block tables."""
        for write in writes:
            end = write.first + len(write.blocks)
            self._arena.block_tables[write.slot, write.first : end] = write.blocks

    def execute(self, plan: HostPlan, interruption: Interruption) -> list[Sample]:
        """Check what rows attend to, make their tokens and commit them, one row after the other."""
        self.meanwhile()
        interruption.poll()
        samples: list[Sample] = []
        for count, row in enumerate(plan.rows):
            blocks = self._arena.block_tables[row.slot].tolist()
            assert row.token_id == token_for(row.request_id, row.position)
            _put(self._kv, blocks, row.position, kv_of(row.request_id, row.position))
            _check(self._kv, blocks, row.request_id, row.position + 1)
            token_id = token_for(row.request_id, row.position + 1)
            block = blocks[(row.position + 1) // _BLOCK_SIZE]
            self._arena.block_tokens[block, (row.position + 1) % _BLOCK_SIZE] = token_id
            if count == self.dies_after:
                raise Killed
            self._arena.sequences.advance([row.slot], [row.position + 2])
            samples.append(Sample(row.request_id, token_id))
        if self.dies_after is not None:
            raise Killed
        return samples

    def gauges(self) -> Mapping[str, float]:
        """No numbers."""
        return {}


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
        """How many of each kind reach an engine while it computes."""
        self.device_runner: DeviceRunner | None = None
        self.host_runner: HostRunner | None = None
        ports = {engine: _GatewaysPort(self, engine) for engine in Engine}
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
        if len(self.sessions) < len(Engine) or any(s.to_client.ended for s in self.live()):
            return
        prompt = tuple(token_for(request.request_id, p) for p in range(request.prompt_tokens))
        self.requests[request.request_id] = request
        self.generations[request.request_id] = self.running.begin(request, prompt)

    def live(self) -> Iterator[Session]:
        """The gateway's sessions."""
        yield from self.sessions.values()

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
        *others, end = events
        assert isinstance(end, GenerationEnd)
        tokens = [event for event in others if isinstance(event, GeneratedToken)]
        first = self.requests[request_id].prompt_tokens
        ids: list[int] = []
        for position, token in enumerate(tokens, first):
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
        for _ in range(self.messages_amid_steps):
            self.deliver_to_engine(Engine.GPU)
            self.deliver_handoff(Engine.GPU)
        engine.between_stages()

    def _amid_a_host_step(self) -> None:
        for _ in range(self.messages_amid_steps):
            self.deliver_to_engine(Engine.CPU)
            self.deliver_handoff(Engine.CPU)

    def _kv(self, arena: Arena) -> np.ndarray:
        shape = (self._sizes.host_blocks, _BLOCK_SIZE)
        return self._host_kv.setdefault(arena.generation, np.zeros(shape, np.int64))

    def _start_gpu(self) -> None:
        sizes = self._sizes
        arena = Arena.create(self._run_dir, _geometry(sizes), bytes(32), join=True)
        inbox: Inbox[GpuInput] = Inbox()
        limits = GpuLimits(
            num_blocks=sizes.device_blocks,
            block_size=_BLOCK_SIZE,
            max_running=sizes.max_running,
            token_budget=sizes.token_budget,
        )
        self.device_runner = DeviceRunner(sizes, self._kv(arena))
        engine = GpuEngine(
            scheduler=GpuScheduler(limits, placement_from_text(self._placement)),
            runner=self.device_runner,  # type: ignore[arg-type]
            arena=arena,
            inbox=inbox,
            gateways=_EnginesPort(self, Engine.GPU),
            host=_HandoffPort(self, Engine.GPU),
            grammars=_NoGrammars(),
            clock=self.clock,
            max_model_len=min(sizes.device_blocks, sizes.host_blocks) * _BLOCK_SIZE,
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
            block_size=_BLOCK_SIZE,
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
            gateways=_EnginesPort(self, Engine.CPU),
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


class _GatewaysPort:
    """The gateway's way to an engine."""

    def __init__(self, node: MortalNode, engine: Engine) -> None:
        self._node = node
        self._engine = engine

    @property
    def connected(self) -> bool:
        return self._engine in self._node.sessions

    def send(self, message: GatewayWord) -> None:
        session = self._node.sessions.get(self._engine)
        if session is not None:
            session.to_server.put([message])


class _EnginesPort:
    """An engine's way to the gateway."""

    def __init__(self, node: MortalNode, engine: Engine) -> None:
        self._node = node
        self._engine = engine

    def post(self, events: Sequence[EngineEvent]) -> None:
        session = self._node.sessions.get(self._engine)
        if session is not None:
            session.to_client.put(list(events))

    def post_status(self, gauges: Mapping[str, float]) -> None:
        del gauges


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
    return [event async for event in generation]


def _put(kv: np.ndarray, blocks: Sequence[int], position: int, value: int) -> None:
    kv[blocks[position // _BLOCK_SIZE], position % _BLOCK_SIZE] = value


def _check(kv: np.ndarray, blocks: Sequence[int], request_id: int, end: int) -> None:
    used = kv[list(blocks[: blocks_for(end, _BLOCK_SIZE)])].reshape(-1)[:end]
    assert used.tolist() == [kv_of(request_id, p) for p in range(end)], "KV was overwritten"


def _let_go(arena: Arena) -> None:
    """Do to an arena what the end of its process does."""
    os.close(arena._fd)  # noqa: SLF001


def _geometry(sizes: MortalSizes) -> ArenaGeometry:
    return ArenaGeometry(
        num_layers=1,
        num_blocks=sizes.host_blocks,
        num_heads=1,
        num_kv_heads=1,
        block_size=_BLOCK_SIZE,
        head_dim=1,
        kv_dtype=KvDtype.FLOAT16,
        num_slots=sizes.slots,
        max_blocks_per_sequence=min(sizes.device_blocks, sizes.host_blocks),
        request_bytes=128,
    )
