"""Which trace the work at hand belongs to.

A plain value that travels with a request between processes, and a context variable that says it to
whatever a task calls, logging included. Only traces that are recorded are spoken of; who records
them, and how, is not known here.
"""

from contextvars import ContextVar
from dataclasses import dataclass

ENCODED_BYTES = 24
"""Of a trace context between processes: 16 of the trace, 8 of the span."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A trace and the span under which more of it belongs (W3C Trace Context, without flags)."""

    trace_id: bytes
    """16 bytes."""
    span_id: bytes
    """8 bytes."""

    def __post_init__(self) -> None:
        assert len(self.trace_id) == 16
        assert len(self.span_id) == 8

    def encoded(self) -> bytes:
        """Return both ids in a row."""
        return self.trace_id + self.span_id

    def fields(self) -> dict[str, str]:
        """Return both ids in hexadecimal, by the names that logs have for them."""
        return {"trace_id": self.trace_id.hex(), "span_id": self.span_id.hex()}


def decode_trace_context(encoded: bytes) -> TraceContext | None:
    """Return what `encoded` made; None of nothing. Raises ValueError for another length."""
    if not encoded:
        return None
    if len(encoded) != ENCODED_BYTES:
        raise ValueError(f"a trace context has {ENCODED_BYTES} bytes, not {len(encoded)}")
    return TraceContext(encoded[:16], encoded[16:])


current_trace: ContextVar[TraceContext | None] = ContextVar("current_trace", default=None)
"""Of the request that the running task works on; None where it is not traced."""
