"""The span of a client's request, over HTTP and gRPC: who asked, for what, and what came of it."""

import json
import logging
from collections.abc import Iterator

import grpc
import pytest

from dualpace.api import methods
from dualpace.api.v1 import inference_pb2 as pb
from dualpace.core.logs import JsonFormatter
from dualpace.core.request import FinishReason
from dualpace.core.trace_context import current_trace
from dualpace.gateway.engines.backend import GenerationParams
from dualpace.gateway.text.model import ServedModel
from dualpace.testing.fake_backend import End, Pause, Step, always
from dualpace.testing.otlp_collector import CollectedSpan, Collector, http_collector
from dualpace.tracing import Tracing, open_tracing
from tests.unit.gateway.conftest import LiveServer, Serve, ids_of, wait_until
from tests.unit.gateway.test_grpc import grpc_port

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
EOS = 2


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with http_collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield made


@pytest.fixture
def tracing(collector: Collector) -> Iterator[Tracing]:
    with open_tracing("gateway") as made:
        assert made is not None
        yield made


def only_span(collector: Collector) -> CollectedSpan:
    wait_until(lambda: bool(collector.spans))
    [span] = collector.spans
    assert span.trace_id == TRACE and span.parent_id == CALLER and span.server
    return span


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_as_a_span(
    serve: Serve, tracing: Tracing, collector: Collector, demo_model: ServedModel, stream: bool
) -> None:
    ids = ids_of(demo_model, "a secret answer")
    server = serve(always(*ids[:1], Pause(0.05), *ids[1:], EOS), tracing=tracing)
    server.client.headers.update(HEADERS)
    response = server.chat("a secret question", stream=stream, max_tokens=50, top_p=0.5, n=2)
    assert response.status_code == 200
    span = only_span(collector)
    told = span.attributes
    assert span.name == "chat demo"
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "dualpace",
        "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": stream,
        "gen_ai.usage.output_tokens": 2 * (len(ids) + 1),
        "gen_ai.response.finish_reasons": ["stop", "stop"],
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
    }
    assert {name: told.get(name) for name in expected} == expected
    assert told["gen_ai.usage.input_tokens"] > 3
    assert told["gen_ai.response.id"].startswith("chatcmpl-")
    first = told["gen_ai.latency.time_to_first_token"]
    assert told["gen_ai.response.time_to_first_chunk"] == first
    assert 0 < first < told["gen_ai.latency.e2e"] - 0.04 < span.seconds
    assert not span.failed
    assert "secret" not in repr(span)


@pytest.mark.parametrize(
    ("steps", "fields", "status", "kind"),
    [
        ([EOS], {"max_tokens": 0}, 400, None),
        ([End(FinishReason.ERROR, "broken")], {}, 500, "500"),
    ],
)
def test_only_what_is_not_the_clients_fault_is_a_failure(
    serve: Serve,
    tracing: Tracing,
    collector: Collector,
    steps: list[Step],
    fields: dict[str, int],
    status: int,
    kind: str | None,
) -> None:
    server = serve(always(*steps), tracing=tracing)
    server.client.headers.update(HEADERS)
    assert server.chat(**fields).status_code == status
    span = only_span(collector)
    assert span.failed == (kind is not None)
    assert span.attributes.get("error.type") == kind
    assert span.attributes["http.response.status_code"] == status


def test_a_response_is_a_chat_too(serve: Serve, tracing: Tracing, collector: Collector) -> None:
    server = serve(always(1000, EOS), tracing=tracing)
    server.client.headers.update(HEADERS)
    assert server.post("/v1/responses", {"input": "Hi"}).status_code == 200
    span = only_span(collector)
    assert span.name == "chat demo"
    assert span.attributes["gen_ai.response.id"].startswith("resp_")
    assert span.attributes["gen_ai.usage.output_tokens"] == 2


def test_an_error_within_a_stream_fails_its_span(
    serve: Serve, tracing: Tracing, collector: Collector
) -> None:
    server = serve(always(1000, End(FinishReason.ERROR, "broken")), tracing=tracing)
    server.client.headers.update(HEADERS)
    assert '"error"' in server.complete(stream=True).text
    span = only_span(collector)
    assert span.failed and span.attributes["error.type"] == "error"
    assert span.attributes["gen_ai.usage.output_tokens"] == 1


def test_probes_and_lists_have_no_spans(
    serve: Serve, tracing: Tracing, collector: Collector
) -> None:
    server = serve(always(EOS), tracing=tracing)
    server.client.headers.update(HEADERS)
    for path in ("/livez", "/metrics", "/v1/models", "/nothing"):
        server.client.get(path)
    server.chat()
    only_span(collector)


def test_engines_and_logs_hear_of_the_trace(
    serve: Serve,
    tracing: Tracing,
    collector: Collector,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    lines: list[str] = []

    def script(_prompt: tuple[int, ...], _params: GenerationParams) -> list[Step]:
        trace = current_trace.get()
        assert trace is not None
        seen.append(trace.trace_id.hex())
        return [EOS]

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(JsonFormatter("gateway").format(record))

    logger = logging.getLogger("dualpace.gateway.http.middleware")
    handler = Lines()
    logger.addHandler(handler)
    caplog.set_level(logging.INFO, logger.name)
    try:
        server = serve(script, tracing=tracing)
        server.client.headers.update(HEADERS)
        server.complete()
        server.client.get("/v1/models")
        wait_until(lambda: len(lines) == 2)  # each is logged behind its answer
    finally:
        logger.removeHandler(handler)
    assert seen == [TRACE]
    request, listing = (json.loads(line) for line in lines)
    span = only_span(collector)
    assert (request["trace_id"], request["span_id"]) == (TRACE, span.span_id)
    assert "trace_id" not in listing


@pytest.mark.parametrize("conversation", [False, True])
def test_a_grpc_call_as_a_span(
    serve: Serve, tracing: Tracing, collector: Collector, conversation: bool
) -> None:
    server = serve(always(1000, EOS), grpc_port=0, tracing=tracing)
    chat = pb.Conversation(messages=[pb.Message(role="user", content="Hi")])
    request = (
        pb.GenerateRequest(conversation=chat) if conversation else pb.GenerateRequest(text="a")
    )
    parts = call(server, request)
    assert parts
    span = only_span(collector)
    operation = "chat" if conversation else "text_completion"
    assert span.name == f"{operation} demo"
    expected = {
        "rpc.system": "grpc",
        "rpc.service": "dualpace.v1.Inference",
        "rpc.method": "Generate",
        "gen_ai.operation.name": operation,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ["stop"],
    }
    assert {name: span.attributes.get(name) for name in expected} == expected


def test_a_grpc_call_that_fails(serve: Serve, tracing: Tracing, collector: Collector) -> None:
    script = always(1000, End(FinishReason.ERROR, "broken"))
    server = serve(script, grpc_port=0, tracing=tracing)
    with pytest.raises(grpc.RpcError):
        call(server, pb.GenerateRequest(text="a"))
    span = only_span(collector)
    assert span.failed and span.attributes["error.type"] == "INTERNAL"


def call(server: LiveServer, request: pb.GenerateRequest) -> list[pb.GenerateResponse]:
    """Generate as any client of gRPC would that traces its calls."""
    with grpc_port(server) as address, grpc.insecure_channel(address) as channel:
        generate = channel.unary_stream(
            methods.GENERATE,
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        return list(generate(request, metadata=tuple(HEADERS.items()), timeout=20))
