"""A collector of OpenTelemetry spans, over HTTP or gRPC, that keeps what it is sent."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service_grpc
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """A span as it came over the wire; ids in hexadecimal."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    server: bool
    failed: bool
    seconds: float
    attributes: dict[str, Any]


@dataclass
class Collector:
    """What has been collected. `endpoint` is for OTEL_EXPORTER_OTLP_ENDPOINT."""

    endpoint: str
    spans: list[CollectedSpan] = field(default_factory=list)

    def of_trace(self, trace_id: str) -> list[CollectedSpan]:
        """Return the spans of a trace that have come so far."""
        return [span for span in list(self.spans) if span.trace_id == trace_id]

    def take(self, request: service_pb.ExportTraceServiceRequest) -> None:
        """Keep what a request brings."""
        for resource in request.resource_spans:
            named = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans.extend(_span(str(named["service.name"]), span) for span in scope.spans)


@contextmanager
def http_collector() -> Iterator[Collector]:
    """Collect over HTTP for as long as the context lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    server.collector = collector  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    """Collect over gRPC for as long as the context lasts."""
    server = grpc.server(ThreadPoolExecutor(2))
    collector = Collector(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    service_grpc.add_TraceServiceServicer_to_server(_Servicer(collector), server)  # type: ignore[no-untyped-call]
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/traces", self.path
        self.server.collector.take(  # type: ignore[attr-defined]
            service_pb.ExportTraceServiceRequest.FromString(body)
        )
        answer = service_pb.ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Say nothing."""


class _Servicer(service_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(  # noqa: N802 - gRPC's name
        self, request: service_pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> service_pb.ExportTraceServiceResponse:
        del context
        self._collector.take(request)
        return service_pb.ExportTraceServiceResponse()


def _span(service: str, span: trace_pb2.Span) -> CollectedSpan:
    return CollectedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        server=span.kind == trace_pb2.Span.SPAN_KIND_SERVER,
        failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        attributes=_attributes(span.attributes),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: common_pb2.AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, str(kind))
