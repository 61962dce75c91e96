"""The engines of one node over gRPC: implements `backend.Backend`.

Requests go to the gpu-engine alone; tokens come from whichever engine owns the request. A
cancellation goes to both, as only they know who that is. When an engine dies, requests are kept
(`running`): sessions are tried again until it is back.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from dualpace.core.clock import Clock
from dualpace.core.errors import PeerLostError, ProtocolError, StoppedError
from dualpace.core.messages import EngineEvent
from dualpace.core.request import Engine, Request
from dualpace.core.trace_context import current_trace
from dualpace.gateway.engines.backend import EngineState, GenerationParams, NodeInfo
from dualpace.gateway.engines.generation import NodeGeneration
from dualpace.gateway.engines.running import RunningRequests
from dualpace.gateway.random_ids import random_bits
from dualpace.ipc.engine_client import EngineClient
from dualpace.ipc.engine_server import EngineFacts

log = logging.getLogger(__name__)

_SWEEP_S = 0.5


class NodeBackend:
    """Sessions with both engines, and the generations that run in them."""

    def __init__(
        self,
        gpu_socket: Path,
        cpu_socket: Path,
        *,
        clock: Clock,
        model_fingerprint: bytes,
        engine_timeout_s: float,
        engine_wait_s: float,
    ) -> None:
        """`engine_wait_s`: how long a request that lost its engine waits for one."""
        self._clock = clock
        self._fingerprint = model_fingerprint
        self._engine_timeout_s = engine_timeout_s
        self._gateway_id = secrets.randbits(63)
        sockets = {Engine.GPU: gpu_socket, Engine.CPU: cpu_socket}
        self._clients = {
            engine: EngineClient(engine, socket, self._gateway_id, self)
            for engine, socket in sockets.items()
        }
        self._facts: dict[Engine, EngineFacts] = {}
        self._gauges: dict[Engine, dict[str, float]] = {}
        self._losses = dict.fromkeys(Engine, 0)
        self._last_sign_s: dict[Engine, float] = {}
        self._running = RunningRequests(self._gateway_id, self._clients, clock, engine_wait_s)
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self) -> None:
        """Connect to both engines, and wait until requests can be served.

        Raises ProtocolError if an engine is of another release or serves another model.
        """
        self._tasks = [asyncio.create_task(client.run()) for client in self._clients.values()]
        self._tasks.append(asyncio.create_task(self._sweep()))
        while True:
            for task in self._tasks:
                if task.done():
                    task.result()
            if self.unready_reason() is None:
                return
            self._changed.clear()
            waiting = asyncio.create_task(self._changed.wait())
            await asyncio.wait([*self._tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    async def stop(self) -> None:
        """Cancel what is running and disconnect."""
        self._stopping = True
        self._running.cancel_all()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            # What ended it before is told by `start` or `failed`.
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    async def failed(self) -> Exception:
        """Wait for a session that can never be had again, such as with an engine of another model.

        Sessions that merely break are tried again and do not end the wait.
        """
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        errors = [task.exception() for task in done if not task.cancelled()]
        return next((e for e in errors if isinstance(e, Exception)), StoppedError("disconnected"))

    @property
    def info(self) -> NodeInfo:
        """Facts of the node; valid once started."""
        facts = self._facts[Engine.GPU]
        return NodeInfo(
            max_model_len=facts.max_model_len,
            vocab_size=facts.vocab_size,
            max_request_bytes=facts.max_request_bytes,
        )

    def engines(self) -> Mapping[Engine, EngineState]:
        """Current state by engine."""
        now = self._clock.now()
        return {
            engine: EngineState(
                connected=client.connected,
                heartbeat_age_s=(
                    now - self._last_sign_s[engine] if engine in self._last_sign_s else None
                ),
                gauges=self._own_gauges(engine) | self._gauges.get(engine, {}),
            )
            for engine, client in self._clients.items()
        }

    def _own_gauges(self, engine: Engine) -> dict[str, float]:
        """What only a gateway can count: it outlives engines."""
        counts = {"losses_total": float(self._losses[engine])}
        if engine is Engine.GPU:
            counts["resubmissions_total"] = float(self._running.resubmitted)
        return counts

    def unready_reason(self) -> str | None:
        """Why a request sent now might hang or fail; None when the node is ready."""
        for engine, state in self.engines().items():
            name = f"{engine.name.lower()}-engine"
            if not state.connected:
                return f"the {name} is not connected"
            if state.heartbeat_age_s is None:
                return f"the {name} has not reported yet"
            if state.heartbeat_age_s > self._engine_timeout_s:
                return f"the {name} has not been heard of for {state.heartbeat_age_s:.0f} s"
        if not self._gauges.get(Engine.GPU, {}).get("host_connected"):
            return "the gpu-engine has no session with the cpu-engine"
        return None

    def generate(self, prompt: tuple[int, ...], params: GenerationParams) -> NodeGeneration:
        """Start a request. Raises PeerLostError when the engines are not connected."""
        for engine, client in self._clients.items():
            if not client.connected:
                raise PeerLostError(f"the {engine.name.lower()}-engine is not connected")
        request = Request(
            request_id=random_bits(63),
            gateway_id=self._gateway_id,
            prompt_tokens=len(prompt),
            max_tokens=params.max_tokens,
            stop_token_ids=params.stop_token_ids,
            sampling=params.sampling,
            arrival_s=self._clock.now(),
            priority=params.priority,
            prompt_logprobs=params.prompt_logprobs,
            trace=current_trace.get(),
            first_token_target_s=params.first_token_target_s,
            token_target_s=params.token_target_s,
        )
        return self._running.begin(request, prompt)

    @property
    def num_generations(self) -> int:
        """Generations that have not ended."""
        return len(self._running)

    # What EngineClients call (ipc.engine_client.EngineListener).

    def engine_joined(self, facts: EngineFacts) -> None:
        """Note an engine's facts; refuse one that serves another model."""
        name = facts.engine.name.lower()
        if facts.model_fingerprint != self._fingerprint:
            raise ProtocolError(f"the {name}-engine serves another model than this gateway")
        self._facts[facts.engine] = facts
        log.info("connected to the %s-engine", name)
        self._running.engine_joined(facts.engine, facts.incarnation)
        self._changed.set()

    def engine_left(self, engine: Engine) -> None:
        """Keep what runs, unless this is the end."""
        self._last_sign_s.pop(engine, None)
        self._gauges.pop(engine, None)
        self._changed.set()
        if not self._stopping:
            name, count = engine.name.lower(), len(self._running)
            self._losses[engine] += 1
            log.error("lost the %s-engine while %d requests were running", name, count)
            self._running.engine_left(engine)

    def engine_events(self, engine: Engine, events: Sequence[EngineEvent]) -> None:
        """Give events to their generations."""
        self._running.take(engine, events)

    def engine_status(self, engine: Engine, gauges: Mapping[str, float]) -> None:
        """Note an engine's numbers, and that it is alive."""
        self._gauges[engine] = dict(gauges)
        self._last_sign_s[engine] = self._clock.now()
        self._changed.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._running.end_overdue()
