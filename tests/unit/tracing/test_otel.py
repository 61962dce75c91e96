"""Spans as a collector gets them, over both protocols."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from dualpace.core.trace_context import TraceContext, decode_trace_context
from dualpace.testing.otlp_collector import Collector, grpc_collector, http_collector
from dualpace.tracing import open_tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("protocol", "collecting"), [("http/protobuf", http_collector), ("grpc", grpc_collector)]
)
def test_spans_arrive_with_parents_and_attributes(
    protocol: str,
    collecting: Callable[[], AbstractContextManager[Collector]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with collecting() as collector:
        # The exporters read their variables themselves.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        with open_tracing("gateway") as tracing:
            assert tracing is not None
            request = tracing.serve("chat", {"traceparent": f"00-{TRACE}-{CALLER}-01"})
            assert request.context is not None
            below = tracing.start("queue", request.context, {"dualpace.request_id": "ab"})
            below.note({"gen_ai.latency.time_in_queue": 0.25, "gen_ai.names": ["a", "b"]})
            below.end()
            request.rename("chat demo")
            request.fail("503")
            request.end()
        queue, chat = collector.spans
    assert (queue.name, chat.name) == ("queue", "chat demo")
    assert {queue.trace_id, chat.trace_id} == {TRACE}
    assert chat.parent_id == CALLER and chat.server
    assert queue.parent_id == chat.span_id and not queue.server
    assert chat.failed and not queue.failed
    assert {queue.service, chat.service} == {"dualpace-gateway"}
    assert queue.attributes == {
        "dualpace.request_id": "ab",
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.names": ["a", "b"],
    }
    assert chat.attributes == {"error.type": "503"}


def test_what_the_caller_does_not_record_is_recorded_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with http_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        with open_tracing("gateway") as tracing:
            assert tracing is not None
            span = tracing.serve("chat", {"traceparent": f"00-{TRACE}-{CALLER}-00"})
            assert span.context is None  # so that the engines do not hear of it
            span.end()
            for broken in ("", "00-zz-1-01", f"00-{'0' * 32}-{CALLER}-01", f"ff-{TRACE}-{CALLER}"):
                span = tracing.serve("chat", {"traceparent": broken})
                assert span.context is not None and span.context.trace_id.hex() != TRACE
                span.end()
        assert len({span.trace_id for span in collector.spans}) == 4


def test_a_collector_that_is_gone_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with open_tracing("gateway") as tracing:
        assert tracing is not None
        begin = time.monotonic()
        tracing.serve("chat", {}).end()
        assert time.monotonic() - begin < 0.5
    assert time.monotonic() - begin < 5.0


def test_a_trace_context_between_processes() -> None:
    context = TraceContext(bytes.fromhex(TRACE), bytes.fromhex(CALLER))
    assert decode_trace_context(context.encoded()) == context
    assert decode_trace_context(b"") is None
    with pytest.raises(ValueError, match="24 bytes"):
        decode_trace_context(context.encoded()[:-1])
    assert context.fields() == {"trace_id": TRACE, "span_id": CALLER}
