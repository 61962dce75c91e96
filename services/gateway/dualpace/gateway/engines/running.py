"""The requests of a gateway that are running, kept through the deaths of engines.

Events go to their generation. When an engine dies nothing ends: the cpu-engine is asked about every
request for which no engine answers (`custody`), and what nobody owns is submitted to the gpu-engine
again, with the tokens that have come of it. Knows no sockets; runs in the event loop.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from dualpace.core.clock import Clock
from dualpace.core.messages import (
    Ask,
    Cancel,
    EngineEvent,
    GatewayWord,
    Live,
    Ownership,
    TokenEvent,
)
from dualpace.core.request import Engine, Request
from dualpace.gateway.engines.custody import Custody
from dualpace.gateway.engines.generation import NodeGeneration

log = logging.getLogger(__name__)

_STRAYS_REMEMBERED = 256


class EnginePort(Protocol):
    """The way to an engine."""

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        ...

    def send(self, message: GatewayWord) -> None:
        """Queue a message; dropped when there is no session."""
        ...


class RunningRequests:
    """Generations by request, and who answers for each."""

    def __init__(
        self,
        gateway_id: int,
        engines: Mapping[Engine, EnginePort],
        clock: Clock,
        engine_wait_s: float,
    ) -> None:
        """`engine_wait_s`: how long a request that lost its engine waits for one."""
        self._gateway_id = gateway_id
        self._engines = engines
        self._clock = clock
        self._engine_wait_s = engine_wait_s
        self._incarnations: dict[Engine, int] = {}
        self._generations: dict[int, NodeGeneration] = {}
        self._custody = Custody()
        self._strays: dict[int, None] = {}
        """Requests that engines were told to stop, once more, as tokens came that nobody wants."""
        self.resubmitted = 0
        """How often a request was computed again because its engine had died."""

    def __len__(self) -> int:
        return len(self._generations)

    def begin(self, request: Request, prompt: tuple[int, ...]) -> NodeGeneration:
        """Submit a request to the gpu-engine, which must be there."""
        generation = NodeGeneration(request, prompt, self._abandon)
        self._generations[request.request_id] = generation
        self._submit(generation)
        return generation

    def cancel_all(self) -> None:
        """Give every request up."""
        for generation in list(self._generations.values()):
            generation.cancel()

    def engine_joined(self, engine: Engine, incarnation: int) -> None:
        """Note that an engine is there, for the first time or again."""
        if self._incarnations.get(engine) == incarnation:
            # The same process has ended all of them when the session broke.
            for generation in list(self._generations.values()):
                self._fail(generation, f"the session with the {_name(engine)} broke")
        self._incarnations[engine] = incarnation
        if engine is Engine.CPU:
            self._engines[engine].send(Live(self._gateway_id, tuple(self._generations)))
        self._settle()

    def engine_left(self, engine: Engine) -> None:
        """Note that an engine is gone: whoever owns a request goes on, or it is computed again."""
        now = self._clock.now()
        for generation in self._generations.values():
            if generation.waiting_since_s is None:
                generation.waiting_since_s = now
        self._custody.lost(engine)
        self._settle()

    def take(self, engine: Engine, events: Sequence[EngineEvent]) -> None:
        """Take an engine's events, in its order."""
        unsettled = False
        for event in events:
            if isinstance(event, Ownership):
                self._custody.told(engine, event.request_id, owned=event.owned, serial=event.serial)
                unsettled = True
                continue
            generation = self._generations.get(event.request_id)
            if generation is None:
                self._turn_away(event)
                continue
            generation.take(engine, event)
            if generation.done:
                self._forget(generation)
        if unsettled:
            self._settle()

    def end_overdue(self) -> None:
        """End requests that have waited too long for an engine; call it now and then."""
        now = self._clock.now()
        missing = [engine for engine, port in self._engines.items() if not port.connected]
        for generation in list(self._generations.values()):
            since_s = generation.waiting_since_s
            if since_s is None:
                continue
            if not missing and self._custody.settled(generation.request_id):
                generation.waiting_since_s = None
            elif now - since_s > self._engine_wait_s:
                names = " and the ".join(map(_name, missing)) or "engine that had it"
                self._fail(
                    generation,
                    f"the {names} went away, and nobody took this request up again within"
                    f" {self._engine_wait_s:g} s",
                )

    def _submit(self, generation: NodeGeneration) -> None:
        self._custody.submitted(generation.request_id, self._incarnations[Engine.GPU])
        self._engines[Engine.GPU].send(generation.submission())

    def _settle(self) -> None:
        """Ask about requests for which no engine answers, and submit those that nobody owns."""
        if self._engines[Engine.CPU].connected:
            for question in self._custody.questions():
                self._engines[Engine.CPU].send(
                    Ask(
                        self._gateway_id,
                        question.request_id,
                        self._generations[question.request_id].next_position,
                        question.device,
                        question.serial,
                    )
                )
        if self._engines[Engine.GPU].connected:
            again = [self._generations[request_id] for request_id in self._custody.unowned()]
            for generation in again:
                self._resubmit(generation)
            if again:
                log.info("submitted again, having lost their engine: %d", len(again))

    def _resubmit(self, generation: NodeGeneration) -> None:
        generation.moved = True
        if generation.end_if_complete():
            self._forget(generation)
        else:
            self.resubmitted += 1
            self._submit(generation)

    def _forget(self, generation: NodeGeneration) -> None:
        """Drop a generation that has ended; one that was submitted twice may still be computed."""
        del self._generations[generation.request_id]
        self._custody.ended(generation.request_id)
        if generation.moved:
            self._cancel_in_engines(generation.request_id)

    def _abandon(self, request_id: int) -> None:
        if self._generations.pop(request_id, None) is not None:
            self._custody.ended(request_id)
            self._cancel_in_engines(request_id)

    def _fail(self, generation: NodeGeneration, message: str) -> None:
        generation.fail(message)
        self._abandon(generation.request_id)

    def _turn_away(self, event: EngineEvent) -> None:
        """Stop a request that is not known here: its cancellation was lost with an engine."""
        if isinstance(event, TokenEvent) and event.request_id not in self._strays:
            self._strays[event.request_id] = None
            if len(self._strays) > _STRAYS_REMEMBERED:
                del self._strays[next(iter(self._strays))]
            self._cancel_in_engines(event.request_id)

    def _cancel_in_engines(self, request_id: int) -> None:
        for port in self._engines.values():
            port.send(Cancel(request_id))


def _name(engine: Engine) -> str:
    return f"{engine.name.lower()}-engine"
