"""The engines of one node over gRPC: implements `backend.Backend`.

Requests go to the gpu-engine alone; tokens come from whichever engine owns the request. A
cancellation goes to both, as only they know who that is.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from dualpace.core.clock import Clock
from dualpace.core.errors import PeerLostError, ProtocolError, StoppedError
from dualpace.core.messages import Cancel, EngineEvent, Submit
from dualpace.core.request import Engine, Request
from dualpace.core.trace_context import current_trace
from dualpace.gateway.backend import EngineState, GenerationParams, NodeInfo
from dualpace.gateway.generation import NodeGeneration
from dualpace.gateway.random_ids import random_bits
from dualpace.ipc.engine_client import EngineClient
from dualpace.ipc.engine_server import EngineFacts

log = logging.getLogger(__name__)


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
    ) -> None:
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
        self._gauges: dict[Engine, Mapping[str, float]] = {}
        self._last_sign_s: dict[Engine, float] = {}
        self._generations: dict[int, NodeGeneration] = {}
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self) -> None:
        """Connect to both engines, and wait until requests can be served.

        Raises ProtocolError if an engine is of another release or serves another model.
        """
        self._tasks = [asyncio.create_task(client.run()) for client in self._clients.values()]
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
        for generation in list(self._generations.values()):
            generation.cancel()
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
                gauges=self._gauges.get(engine, {}),
            )
            for engine, client in self._clients.items()
        }

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
        self._clients[Engine.GPU].send(Submit(request, prompt))
        generation = NodeGeneration(request.request_id, len(prompt), self._abandon)
        self._generations[request.request_id] = generation
        return generation

    @property
    def num_generations(self) -> int:
        """Generations that have not ended."""
        return len(self._generations)

    # What EngineClients call (ipc.engine_client.EngineListener).

    def engine_joined(self, facts: EngineFacts) -> None:
        """Note an engine's facts; refuse one that serves another model."""
        if facts.model_fingerprint != self._fingerprint:
            name = facts.engine.name.lower()
            raise ProtocolError(f"the {name}-engine serves another model than this gateway")
        self._facts[facts.engine] = facts
        log.info("connected to the %s-engine", facts.engine.name.lower())
        self._changed.set()

    def engine_left(self, engine: Engine) -> None:
        """End what runs.

        A request may be on its way between the engines, and its tokens with it.
        """
        self._last_sign_s.pop(engine, None)
        self._gauges.pop(engine, None)
        generations = list(self._generations.values())
        self._generations.clear()
        if not self._stopping:
            name = engine.name.lower()
            log.error("lost the %s-engine; %d requests fail", name, len(generations))
        for generation in generations:
            generation.fail(f"the {engine.name.lower()}-engine went away")
            self._cancel_in_engines(generation.request_id)
        self._changed.set()

    def engine_events(self, engine: Engine, events: Sequence[EngineEvent]) -> None:
        """Give events to their generations; those of generations that are gone are dropped."""
        for event in events:
            generation = self._generations.get(event.request_id)
            if generation is not None:
                generation.take(engine, event)
                if generation.done:
                    del self._generations[event.request_id]

    def engine_status(self, engine: Engine, gauges: Mapping[str, float]) -> None:
        """Note an engine's numbers, and that it is alive."""
        self._gauges[engine] = gauges
        self._last_sign_s[engine] = self._clock.now()
        self._changed.set()

    def _abandon(self, request_id: int) -> None:
        if self._generations.pop(request_id, None) is not None:
            self._cancel_in_engines(request_id)

    def _cancel_in_engines(self, request_id: int) -> None:
        for client in self._clients.values():
            client.send(Cancel(request_id))
