"""What services need of tracing, as Protocols; `otel` implements them, and so do test doubles."""

from collections.abc import Mapping
from typing import Protocol

from dualpace.core.trace_context import TraceContext

Attribute = bool | int | float | str | list[str]


class Span(Protocol):
    """One span, begun. End it once."""

    @property
    def context(self) -> TraceContext | None:
        """What those are told who add spans below this one; None if nobody records the trace."""
        ...

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""
        ...

    def rename(self, name: str) -> None:
        """Give the span another name."""
        ...

    def fail(self, kind: str) -> None:
        """Mark the span as failed. `kind` is one of few, and shows nothing of the request."""
        ...

    def end(self) -> None:
        """Note the end, which is now."""
        ...


class Tracing(Protocol):
    """Begins spans, in any thread."""

    def start(self, name: str, parent: TraceContext, attributes: Mapping[str, Attribute]) -> Span:
        """Begin a span of work for a request."""
        ...

    def serve(self, name: str, headers: Mapping[str, str]) -> Span:
        """Begin the span of a client's request, in the trace that its headers name or a new one.

        Header names are in lower case.
        """
        ...
