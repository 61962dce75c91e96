"""Spans of the time that traced requests spend on the host, from commit to end or return."""

from dataclasses import dataclass
from typing import Protocol

from dualpace.core.clock import Clock
from dualpace.core.request import Request
from dualpace.scheduling.plan import HostPlan
from dualpace.scheduling.route import Route
from dualpace.tracing import Span, Tracing, names


class Tracer(Protocol):
    """Told which slots have which requests, and what was computed for them."""

    def opened(self, slot: int, request: Request) -> None:
        """A request is owned here from now on."""
        ...

    def advanced(self, plan: HostPlan) -> None:
        """Every row of a plan got a token."""
        ...

    def closed(self, slot: int) -> None:
        """A slot's request is not owned here any more."""
        ...


class NoTracing:
    """Where no spans are wanted."""

    def opened(self, slot: int, request: Request) -> None:
        """Do nothing."""

    def advanced(self, plan: HostPlan) -> None:
        """Do nothing."""

    def closed(self, slot: int) -> None:
        """Do nothing."""


@dataclass(slots=True)
class _Hosted:
    span: Span
    started_s: float
    tokens: int = 0
    assisted_tokens: int = 0


class HostTracer:
    """Implements Tracer."""

    def __init__(self, tracing: Tracing, clock: Clock) -> None:
        self._tracing = tracing
        self._clock = clock
        self._hosted: dict[int, _Hosted] = {}

    def opened(self, slot: int, request: Request) -> None:
        """Begin a span, if the request is traced."""
        if request.trace is not None:
            about = {names.REQUEST_ID: f"{request.request_id:x}"}
            span = self._tracing.start(names.HOST_DECODE, request.trace, about)
            self._hosted[slot] = _Hosted(span, self._clock.now())

    def advanced(self, plan: HostPlan) -> None:
        """Count tokens."""
        if not self._hosted:
            return
        assisted = plan.route is not Route.HOST
        for row in plan.rows:
            hosted = self._hosted.get(row.slot)
            if hosted is not None:
                hosted.tokens += 1
                hosted.assisted_tokens += assisted

    def closed(self, slot: int) -> None:
        """End the slot's span."""
        hosted = self._hosted.pop(slot, None)
        if hosted is not None:
            hosted.span.note(
                {
                    names.TOKENS: hosted.tokens,
                    names.ASSISTED_TOKENS: hosted.assisted_tokens,
                    names.TIME_IN_DECODE: self._clock.now() - hosted.started_s,
                }
            )
            hosted.span.end()
