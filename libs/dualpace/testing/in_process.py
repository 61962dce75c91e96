"""A whole node in one process and one thread: real engines, real arena, no sockets, manual time.

The engines take turns as the test says, so that a claim about stalls or ownership is exact.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from llguidance import LLTokenizer

from dualpace.checkpoint import ModelConfig
from dualpace.core.errors import GrammarError
from dualpace.core.messages import (
    EngineEvent,
    FinishEvent,
    HandoffCommand,
    HandoffEvent,
    Live,
    Ownership,
    PromptLogprobs,
    StartEvent,
    Submit,
    TokenEvent,
    TokenLogprobs,
)
from dualpace.core.request import Engine, Request, SamplingParams
from dualpace.core.trace_context import TraceContext
from dualpace.cpu_engine.assist import AssistedStep
from dualpace.cpu_engine.borrowing import Borrowing
from dualpace.cpu_engine.engine import CpuEngine
from dualpace.cpu_engine.runner import HostRunner
from dualpace.cpu_engine.tracing import HostTracer
from dualpace.gpu_engine.dense_assist import DenseAssist
from dualpace.gpu_engine.device import CpuDevice
from dualpace.gpu_engine.engine import GpuEngine
from dualpace.gpu_engine.lending import Lending
from dualpace.gpu_engine.offer import OfferKeeper
from dualpace.gpu_engine.runner import GpuRunner
from dualpace.gpu_engine.torch_stages import TorchStages
from dualpace.gpu_engine.tracing import StageTracer
from dualpace.grammar import Grammars
from dualpace.ipc.arena import Arena
from dualpace.ipc.assist_region import AssistRegion
from dualpace.ipc.channel import CpuInput, DeviceJoined, GpuInput, HostJoined, Inbox
from dualpace.ipc.layout import ArenaGeometry
from dualpace.models.arena_pool import KV_DTYPES, arena_pool
from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.host_step import HostStep, host_step
from dualpace.models.kv_pool import KvPool
from dualpace.scheduling.cpu import HostLimits, HostScheduler
from dualpace.scheduling.forced_route import ForcedRoute
from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.lease import AssistLease
from dualpace.scheduling.placement import placement_from_text
from dualpace.scheduling.route import Route
from dualpace.testing.clock import ManualClock
from dualpace.tracing import Tracing

GATEWAY_ID = 1
_HOST_THREADS = 2
SESSION = 1


@dataclass
class Received:
    """What the gateway got of one request."""

    tokens: dict[int, TokenEvent] = field(default_factory=dict)
    engines: dict[int, Engine] = field(default_factory=dict)
    """Which engine was first to send each position."""
    started: bool = False
    finish: FinishEvent | None = None
    prompt_logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """By position."""
    disowned_by: set[Engine] = field(default_factory=set)
    """Engines that have said that the request is not theirs."""

    def token_ids(self) -> list[int]:
        """Generated token ids in order."""
        return [self.tokens[p].token_id for p in sorted(self.tokens)]


class _GatewayPort:
    """Collects one engine's events."""

    def __init__(self, engine: Engine, received: dict[int, Received]) -> None:
        self._engine = engine
        self._received = received

    def post(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            received = self._received[event.request_id]
            if isinstance(event, StartEvent):
                assert not received.started, "a request started twice"
                assert not received.tokens, "a request starts before its first token"
                received.started = True
            elif isinstance(event, Ownership):
                received.disowned_by |= set() if event.owned else {self._engine}
            elif isinstance(event, FinishEvent):
                assert received.finish is None, "a request ended twice"
                received.finish = event
            elif isinstance(event, PromptLogprobs):
                assert not received.tokens, "scores of the prompt come first"
                received.prompt_logprobs |= dict(enumerate(event.tokens, event.start))
            elif event.position not in received.tokens:
                received.tokens[event.position] = event
                received.engines[event.position] = self._engine
            else:
                assert received.tokens[event.position].token_id == event.token_id

    def post_status(self, gauges: Mapping[str, float]) -> None:
        del gauges


class _CommandPort:
    def __init__(self, inbox: Inbox[CpuInput]) -> None:
        self._inbox = inbox

    def post(self, session: int, commands: Sequence[HandoffCommand]) -> None:
        assert session == SESSION
        for command in commands:
            self._inbox.put(command)


class _EventPort:
    def __init__(self, inbox: Inbox[GpuInput]) -> None:
        self._inbox = inbox

    def post(self, session: int, events: Sequence[HandoffEvent]) -> None:
        assert session == SESSION
        for event in events:
            self._inbox.put(event)


class _CompileAtOnce:
    """Compiles grammars in the engine's own thread: no test depends on the pace of another."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars

    def prepare(self, grammar: str, done: Callable[[], None]) -> None:
        with suppress(GrammarError):  # told when the request is sampled
            self._grammars.matcher(grammar)
        done()

    def ready(self, grammar: str) -> bool:
        return self._grammars.ready(grammar)


@dataclass(frozen=True, kw_only=True)
class NodeSizes:
    """Memory and batch limits of a test node."""

    device_blocks: int = 64
    host_blocks: int = 64
    block_size: int = 16
    max_running: int = 8
    token_budget: int = 64
    host_slots: int = 16
    max_batch: int = 8


class _DirectBell:
    """Lets the device serve at once whoever rings, while `answers` is set."""

    def __init__(self) -> None:
        self.answers: Callable[[], object] | None = None

    def ring(self) -> None:
        if self.answers is not None:
            self.answers()

    def listen(self) -> None:
        pass

    def wait(self, timeout_s: float) -> None:
        del timeout_s


class InProcessNode:
    """Both engines over one decoder. Close it when done."""

    def __init__(
        self,
        decoder: Decoder,
        run_dir: Path,
        placement: str,
        *,
        attention: PagedAttention,
        grammars: Grammars | None = None,
        sizes: NodeSizes | None = None,
        routes: tuple[Route, ...] = (Route.HOST,),
        tracing: Tracing | None = None,
    ) -> None:
        """`routes` are those of the host's iterations, in turn; see ForcedRoute."""
        sizes = sizes or NodeSizes()
        if grammars is None:
            grammars = Grammars(_no_vocabulary)
        self.clock = ManualClock()
        self.between_device_stages: Callable[[], None] = lambda: None
        """Called at the boundaries between stages of the device's iterations."""
        self.received: dict[int, Received] = {}
        self.gpu_inbox: Inbox[GpuInput] = Inbox()
        self.cpu_inbox: Inbox[CpuInput] = Inbox()
        self.arena = Arena.create(run_dir, _geometry(decoder, sizes), bytes(32))
        self.gpu_scheduler = GpuScheduler(
            GpuLimits(
                num_blocks=sizes.device_blocks,
                block_size=sizes.block_size,
                max_running=sizes.max_running,
                token_budget=sizes.token_budget,
            ),
            placement_from_text(placement),
        )
        policy = ForcedRoute(routes)
        self.host_scheduler = HostScheduler(
            HostLimits(
                num_blocks=sizes.host_blocks,
                block_size=sizes.block_size,
                num_slots=sizes.host_slots,
                max_blocks_per_sequence=self.arena.geometry.max_blocks_per_sequence,
                max_batch=sizes.max_batch,
            ),
            policy,
        )
        device = self.device = CpuDevice()
        self._bell = _DirectBell()
        channels = AssistRegion(self.arena).channels(self._bell)
        self.dense_assist = DenseAssist(
            stages=TorchStages(
                decoder=decoder, arena=self.arena, channels=channels, grammars=grammars
            ),
            device=device,
            channels=channels,
            lease=AssistLease(),
            clock=self.clock,
        )
        self.assisted = AssistedStep(
            decoder=decoder,
            arena=self.arena,
            attention=attention,
            device_bell=self._bell,
            clock=self.clock,
            deadline_s=0.02,
        )
        borrower = Borrowing(self.assisted, policy)
        offer = OfferKeeper(
            AssistRegion(self.arena), share=0.35, num_layers=decoder.config.num_layers
        )
        self.lend()
        self.gpu = GpuEngine(
            scheduler=self.gpu_scheduler,
            runner=GpuRunner(
                decoder=decoder,
                device=device,
                device_pool=_device_pool(decoder.config, decoder.dtype, sizes),
                host_pool=arena_pool(self.arena),
                attention=attention,
                grammars=grammars,
                max_running=sizes.max_running,
                max_blocks_per_sequence=self.arena.geometry.max_blocks_per_sequence,
                at_boundary=self._at_device_boundary,
            ),
            arena=self.arena,
            inbox=self.gpu_inbox,
            gateways=_GatewayPort(Engine.GPU, self.received),
            host=_CommandPort(self.cpu_inbox),
            grammars=_CompileAtOnce(grammars),
            clock=self.clock,
            max_model_len=min(sizes.device_blocks, sizes.host_blocks) * sizes.block_size,
            vocab_size=decoder.config.vocab_size,
            lender=Lending(self.dense_assist, offer),
            tracer=None if tracing is None else StageTracer(tracing, self.clock),
        )
        self.cpu = CpuEngine(
            scheduler=self.host_scheduler,
            runner=HostRunner(
                _host_step(decoder, self.arena, attention), self.arena, grammars, borrower
            ),
            borrower=borrower,
            arena=self.arena,
            inbox=self.cpu_inbox,
            gateways=_GatewayPort(Engine.CPU, self.received),
            device=_EventPort(self.gpu_inbox),
            grammars=_CompileAtOnce(grammars),
            clock=self.clock,
            tracer=None if tracing is None else HostTracer(tracing, self.clock),
        )
        self.gpu_inbox.put(HostJoined(SESSION))
        self.cpu_inbox.put(Live(GATEWAY_ID, ()))
        self.cpu_inbox.put(DeviceJoined(SESSION))
        self.gpu.step()
        self.cpu.step()

    def _at_device_boundary(self) -> None:
        self.between_device_stages()
        self.gpu.between_stages()

    def lend(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer assist calls, but for those that come while `until` holds."""
        self._bell.answers = lambda: until() or self.dense_assist.serve(leased=False)

    def submit(
        self,
        request_id: int,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams | None = None,
        *,
        stop_token_ids: tuple[int, ...] = (),
        prompt_logprobs: int | None = None,
        trace: TraceContext | None = None,
    ) -> Request:
        """Send a request to the gpu-engine."""
        request = Request(
            request_id=request_id,
            gateway_id=GATEWAY_ID,
            prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            sampling=sampling or SamplingParams(temperature=0.0),
            arrival_s=self.clock.now(),
            prompt_logprobs=prompt_logprobs,
            trace=trace,
        )
        self.received[request_id] = Received()
        self.gpu_inbox.put(Submit(request, tuple(prompt)))
        return request

    def run(self, until: Callable[[], bool] | None = None, max_rounds: int = 5000) -> None:
        """Let both engines step in turn until nothing is left, or `until` holds."""
        for _ in range(max_rounds):
            self.gpu.step()
            self.cpu.step()
            self.clock.advance(0.01)
            if until is not None and until():
                return
            if until is None and all(r.finish is not None for r in self.received.values()):
                return
        raise AssertionError("requests are stuck")

    def settle(self) -> None:
        """Let the last messages arrive, then assert that nothing is held anywhere."""
        for _ in range(4):
            self.gpu.step()
            self.cpu.step()
        self.gpu_scheduler.state.check_integrity()
        self.host_scheduler.check_integrity()
        assert not self.gpu_scheduler.state.sequences
        assert self.gpu_scheduler.state.free_device_blocks == (
            self.gpu_scheduler.state.total_device_blocks
        )
        assert self.host_scheduler.free_blocks == self.host_scheduler.limits.num_blocks
        assert self.arena.sequences.owned_slots() == []

    def close(self) -> None:
        """Free the arena."""
        self.arena.close()


def _host_step(decoder: Decoder, arena: Arena, attention: PagedAttention) -> HostStep:
    """Native where the decoder's linear maps are; stage by stage with torch's."""
    return host_step(
        decoder, arena_pool(arena), arena.block_tables, attention, num_threads=_HOST_THREADS
    )


def _geometry(decoder: Decoder, sizes: NodeSizes) -> ArenaGeometry:
    config = decoder.config
    return ArenaGeometry(
        num_layers=config.num_layers,
        num_blocks=sizes.host_blocks,
        num_heads=decoder.config.num_heads,
        num_kv_heads=config.num_kv_heads,
        block_size=sizes.block_size,
        head_dim=config.head_dim,
        kv_dtype=KV_DTYPES[decoder.dtype],
        num_slots=sizes.host_slots,
        max_blocks_per_sequence=min(sizes.device_blocks, sizes.host_blocks),
        request_bytes=8192,
        assist_rows=sizes.max_batch,
    )


def _device_pool(config: ModelConfig, dtype: torch.dtype, sizes: NodeSizes) -> KvPool:
    cpu = torch.device("cpu")
    return KvPool.allocate(config, sizes.device_blocks, sizes.block_size, dtype=dtype, device=cpu)


def _no_vocabulary() -> LLTokenizer:
    raise GrammarError("this node was given no vocabulary")
