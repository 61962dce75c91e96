"""Spans of what the gpu-engine does for traced requests: a new one whenever it changes.

It looks at the scheduler's sequences between the parts of an iteration, and does not know why they
are where they are. A request that is away has no span here; the cpu-engine has one then.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Protocol

from dualpace.core.clock import Clock
from dualpace.core.request import Request
from dualpace.core.trace_context import TraceContext
from dualpace.scheduling.gpu_sequence import GpuSequence, Phase
from dualpace.tracing import Span, Tracing, names

_STAGES = {
    Phase.WAITING: names.QUEUE,
    Phase.LEAVING: names.HANDOFF,
    Phase.ARRIVING: names.RETURN,
}


class Tracer(Protocol):
    """Told where requests stand."""

    def received(self, request: Request) -> None:
        """A request has come."""
        ...

    def look(self, sequences: Mapping[int, GpuSequence], compiling: Container[int]) -> None:
        """See where requests stand: those of the scheduler, and those it does not have yet."""
        ...


class NoTracing:
    """Where no spans are wanted."""

    def received(self, request: Request) -> None:
        """Do nothing."""

    def look(self, sequences: Mapping[int, GpuSequence], compiling: Container[int]) -> None:
        """Do nothing."""


class StageTracer:
    """Implements Tracer."""

    def __init__(self, tracing: Tracing, clock: Clock) -> None:
        self._tracing = tracing
        self._clock = clock
        self._traced: dict[int, _Traced] = {}

    def received(self, request: Request) -> None:
        """Begin to trace a request, if its gateway does; first of all it waits."""
        if request.trace is not None:
            traced = _Traced(request.request_id, request.trace, request.prompt_tokens)
            self._traced[request.request_id] = traced
            self._enter(traced, names.QUEUE)

    def look(self, sequences: Mapping[int, GpuSequence], compiling: Container[int]) -> None:
        """Change the spans of requests that do something else now."""
        for request_id, traced in list(self._traced.items()):
            sequence = sequences.get(request_id)
            if sequence is not None:
                traced.sequence = sequence
                stage = stage_of(sequence)
                if stage != traced.stage:
                    self._enter(traced, stage)
            elif request_id not in compiling:  # it has ended
                self._enter(traced, None)
                del self._traced[request_id]

    def _enter(self, traced: "_Traced", stage: str | None) -> None:
        now, known = self._clock.now(), traced.num_tokens
        if traced.span is not None and traced.stage is not None:
            attributes: dict[str, float | int] = {names.TOKENS: known - traced.known_tokens}
            if traced.stage in names.TIMES:
                attributes[names.TIMES[traced.stage]] = now - traced.started_s
            traced.span.note(attributes)
            traced.span.end()
        traced.stage, traced.started_s, traced.known_tokens = stage, now, known
        traced.span = None
        if stage is not None:
            about = {names.REQUEST_ID: f"{traced.request_id:x}"}
            traced.span = self._tracing.start(stage, traced.trace, about)


@dataclass(slots=True)
class _Traced:
    request_id: int
    trace: TraceContext
    prompt_tokens: int
    sequence: GpuSequence | None = None
    stage: str | None = None
    span: Span | None = None
    started_s: float = 0.0
    known_tokens: int = 0
    """When the span began."""

    @property
    def num_tokens(self) -> int:
        """Known now, prompt and generated."""
        return self.prompt_tokens if self.sequence is None else self.sequence.num_tokens


def stage_of(sequence: GpuSequence) -> str | None:
    """Return the name of the span that a sequence should have now; None: none.

    Whatever is computed before the first token, or again after a preemption, is prefill.
    """
    if sequence.phase is not Phase.RUNNING:
        return _STAGES.get(sequence.phase)
    generated = sequence.num_tokens - sequence.request.prompt_tokens
    return names.DECODE if generated and sequence.pending == 1 else names.PREFILL
