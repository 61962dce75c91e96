"""Tracing without a collector: spans as objects, in the order in which they began."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dualpace.core.trace_context import TraceContext
from dualpace.tracing import Attribute


@dataclass
class RecordedSpan:
    """Implements tracing.Span."""

    name: str
    parent: TraceContext | None
    context: TraceContext | None
    attributes: dict[str, Attribute] = field(default_factory=dict)
    failure: str | None = None
    ends: int = 0

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""
        assert not self.ends, "nothing is noted after the end"
        self.attributes |= attributes

    def rename(self, name: str) -> None:
        """Give the span another name."""
        self.name = name

    def fail(self, kind: str) -> None:
        """Mark the span as failed."""
        self.failure = kind

    def end(self) -> None:
        """Note the end."""
        self.ends += 1


class RecordedTracing:
    """Implements tracing.Tracing."""

    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []

    def start(
        self, name: str, parent: TraceContext, attributes: Mapping[str, Attribute]
    ) -> RecordedSpan:
        """Begin a span of work for a request."""
        self.spans.append(RecordedSpan(name, parent, self._next(parent.trace_id), {**attributes}))
        return self.spans[-1]

    def serve(self, name: str, headers: Mapping[str, str]) -> RecordedSpan:
        """Begin the span of a client's request; headers are not understood here."""
        del headers
        self.spans.append(RecordedSpan(name, None, self._next(bytes(15) + b"\1")))
        return self.spans[-1]

    def _next(self, trace_id: bytes) -> TraceContext:
        return TraceContext(trace_id, (len(self.spans) + 1).to_bytes(8))
