"""Spans of requests, sent to an OpenTelemetry collector where an operator asks for it.

Without one nothing of OpenTelemetry is imported. What is traced, services decide; prompts and
texts never are.
"""

from dualpace.tracing.opening import open_tracing
from dualpace.tracing.port import Attribute, Span, Tracing

__all__ = ["Attribute", "Span", "Tracing", "open_tracing"]
