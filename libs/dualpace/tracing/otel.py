"""Tracing with OpenTelemetry's SDK, which sends spans from a thread of its own.

Imported only where spans are wanted.
"""

import logging
import threading
from collections.abc import Mapping
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dualpace.core.trace_context import TraceContext
from dualpace.tracing import names
from dualpace.tracing.port import Attribute

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 2.0
_SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)


class OtelSpan:
    """Implements port.Span."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def context(self) -> TraceContext | None:
        """What those are told who add spans below this one; None if nobody records the trace."""
        if not self._span.is_recording():
            return None
        context = self._span.get_span_context()
        return TraceContext(context.trace_id.to_bytes(16), context.span_id.to_bytes(8))

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""
        self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        """Give the span another name."""
        self._span.update_name(name)

    def fail(self, kind: str) -> None:
        """Mark the span as failed."""
        self._span.set_attribute(names.ERROR_TYPE, kind)
        self._span.set_status(trace.StatusCode.ERROR)

    def end(self) -> None:
        """Note the end, which is now."""
        self._span.end()


class OtelTracing:
    """Implements port.Tracing. Which traces are recorded, OTEL_TRACES_SAMPLER says."""

    def __init__(self, service: str, exporter: SpanExporter) -> None:
        resource = Resource.create(
            {"service.name": f"dualpace-{service}", "service.version": version("dualpace")}
        )
        self._exporter = exporter
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("dualpace")
        self._propagator = TraceContextTextMapPropagator()

    def start(
        self, name: str, parent: TraceContext, attributes: Mapping[str, Attribute]
    ) -> OtelSpan:
        """Begin a span of work for a request."""
        return OtelSpan(
            self._tracer.start_span(name, context=_remote(parent), attributes=attributes)
        )

    def serve(self, name: str, headers: Mapping[str, str]) -> OtelSpan:
        """Begin the span of a client's request, in the trace that its headers name or a new one."""
        context = self._propagator.extract(headers, context=Context())
        kind = trace.SpanKind.SERVER
        return OtelSpan(self._tracer.start_span(name, context=context, kind=kind))

    def close(self) -> None:
        """Send what has ended, and stop; a collector that does not answer is not waited for."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_TIMEOUT_S)
        if ending.is_alive():
            log.warning("the last spans are lost: the collector did not take them in time")
            self._exporter.shutdown()  # ends its waiting for another try
            ending.join(_CLOSE_TIMEOUT_S)


def make_exporter(protocol: str) -> SpanExporter:
    """Return the exporter for a protocol of `settings`; it reads its endpoint itself."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter  # noqa: PLC0415

        return trace_exporter.OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http import (  # noqa: PLC0415 - only the one in use
        trace_exporter as http_exporter,
    )

    return http_exporter.OTLPSpanExporter()


def _remote(parent: TraceContext) -> Context:
    context = trace.SpanContext(
        int.from_bytes(parent.trace_id),
        int.from_bytes(parent.span_id),
        is_remote=True,
        trace_flags=_SAMPLED,
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())
