"""Spans of both engines, with real engines that step in turn: each stay and each wait is told."""

from collections import Counter
from pathlib import Path

import pytest

from dualpace.core.messages import Cancel
from dualpace.core.trace_context import TraceContext
from dualpace.models.torch_attention import TorchPagedAttention
from dualpace.scheduling.route import Route
from dualpace.testing.in_process import InProcessNode, NodeSizes
from dualpace.testing.recorded_tracing import RecordedSpan, RecordedTracing
from dualpace.tracing import names
from tests.integration.test_independence_in_process import PROMPTS, make_decoder

SMALL = NodeSizes(device_blocks=12, host_blocks=12, host_slots=3, max_running=3)


def make_node(
    run_dir: Path,
    placement: str,
    tracing: RecordedTracing,
    sizes: NodeSizes | None = None,
    routes: tuple[Route, ...] = (Route.HOST,),
) -> InProcessNode:
    return InProcessNode(
        make_decoder(),
        run_dir,
        placement,
        attention=TorchPagedAttention(),
        sizes=sizes,
        routes=routes,
        tracing=tracing,
    )


def trace_of(request_id: int) -> TraceContext:
    return TraceContext(bytes([request_id + 1]) * 16, bytes([request_id + 1]) * 8)


def spans_of(tracing: RecordedTracing, request_id: int) -> list[RecordedSpan]:
    return [span for span in tracing.spans if span.parent == trace_of(request_id)]


def tokens_of(span: RecordedSpan) -> int:
    tokens = span.attributes[names.TOKENS]
    assert isinstance(tokens, int)
    return tokens


@pytest.mark.parametrize(
    ("placement", "stages"),
    [
        ("gpu", [names.QUEUE, names.PREFILL, names.DECODE]),
        ("cpu", [names.QUEUE, names.PREFILL, names.HANDOFF, names.HOST_DECODE]),
    ],
)
def test_the_stages_of_a_request(placement: str, stages: list[str], tmp_path: Path) -> None:
    tracing = RecordedTracing()
    node = make_node(tmp_path, placement, tracing)
    node.submit(0, PROMPTS[0].token_ids, 8, trace=trace_of(0))
    node.submit(1, PROMPTS[1].token_ids, 8)  # not traced
    node.run()
    node.settle()
    node.close()
    assert [span.name for span in tracing.spans] == stages
    assert [tokens_of(span) for span in tracing.spans][-1] == 7
    assert {span.attributes[names.REQUEST_ID] for span in tracing.spans} == {"0"}
    for span in tracing.spans:
        assert (names.TIMES.get(span.name) is not None) == (
            any(name in span.attributes for name in names.TIMES.values())
        )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sizes", [NodeSizes(), SMALL])
def test_however_requests_wander_their_spans_account_for_every_token(
    sizes: NodeSizes, seed: int, tmp_path: Path
) -> None:
    """With little room, requests are preempted, evicted and called back as well."""
    tracing = RecordedTracing()
    node = make_node(tmp_path, f"random:{seed}", tracing, sizes)
    for request_id, prompt in enumerate(PROMPTS):
        node.submit(request_id, prompt.token_ids[:40], 24, trace=trace_of(request_id))
    node.run()
    node.settle()
    node.close()
    assert all(span.ends == 1 for span in tracing.spans)
    for request_id, received in node.received.items():
        spans = spans_of(tracing, request_id)
        assert [span.name for span in spans][:2] == [names.QUEUE, names.PREFILL]
        assert sum(map(tokens_of, spans)) == len(received.tokens)
        # Tokens that the host made are those of its spans.
        by_engine = Counter(
            span.name == names.HOST_DECODE for span in spans for _ in range(tokens_of(span))
        )
        hosted = sum(engine == 1 for engine in received.engines.values())
        assert by_engine[True] == hosted


def test_iterations_with_lent_stages_are_told_apart(tmp_path: Path) -> None:
    tracing = RecordedTracing()
    node = make_node(tmp_path, "cpu", tracing, routes=(Route.HOST, Route.ASSIST))
    node.submit(0, PROMPTS[0].token_ids, 9, trace=trace_of(0))
    node.run()
    node.settle()
    node.close()
    [hosted] = [span for span in tracing.spans if span.name == names.HOST_DECODE]
    assert hosted.attributes[names.ASSISTED_TOKENS] == 4
    assert hosted.attributes[names.TOKENS] == 8


@pytest.mark.parametrize("rounds", [0, 1, 2, 4, 8])
def test_a_cancelled_request_leaves_no_span_open(rounds: int, tmp_path: Path) -> None:
    tracing = RecordedTracing()
    node = make_node(tmp_path, "cpu", tracing)
    node.submit(0, PROMPTS[0].token_ids, 24, trace=trace_of(0))
    for _ in range(rounds):
        node.gpu.step()
        node.cpu.step()
    node.gpu_inbox.put(Cancel(0))
    node.cpu_inbox.put(Cancel(0))
    node.run()
    node.settle()
    node.close()
    assert tracing.spans and all(span.ends == 1 for span in tracing.spans)
