"""The span of a client's request: begun when it comes, ended when its answer is over.

The one in progress is found through a context variable, by whatever runs in the request's task.
Attributes follow OpenTelemetry's conventions for GenAI; prompts and texts are no part of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from dualpace.core.trace_context import current_trace
from dualpace.gateway.choices import Choice
from dualpace.tracing import Attribute, Span, Tracing, names

PROVIDER = "dualpace"


class RequestTrace:
    """What is told of one request."""

    def __init__(self, span: Span, operation: str) -> None:
        self._span = span
        self._operation = operation
        span.note({names.OPERATION: operation, names.PROVIDER: PROVIDER})

    def prepared(self, model: str, choices: Sequence[Choice], *, stream: bool) -> None:
        """Note what was asked for, once that is known."""
        params = choices[0].plan.params
        sampling = params.sampling
        self._span.rename(f"{self._operation} {model}")
        self._span.note(
            {
                names.REQUEST_MODEL: model,
                names.RESPONSE_MODEL: model,
                names.REQUEST_MAX_TOKENS: params.max_tokens,
                names.REQUEST_TEMPERATURE: sampling.temperature,
                names.REQUEST_TOP_P: sampling.top_p,
                names.REQUEST_TOP_K: sampling.top_k,
                names.REQUEST_CHOICES: len(choices),
                names.REQUEST_STREAM: stream,
            }
        )

    def answered_by(self, reply_id: str) -> None:
        """Note the id that the answer carries."""
        self._span.note({names.RESPONSE_ID: reply_id})

    def first_token(self, seconds: float) -> None:
        """Note the first token of all, `seconds` after the request's arrival."""
        self._span.note({names.TIME_TO_FIRST_TOKEN: seconds, names.TIME_TO_FIRST_CHUNK: seconds})

    def over(self, usage: Mapping[str, int], reasons: Sequence[str], seconds: float) -> None:
        """Note what came of it, `seconds` after the request's arrival."""
        self._span.note(
            {
                names.INPUT_TOKENS: usage["prompt_tokens"],
                names.OUTPUT_TOKENS: usage["completion_tokens"],
                names.FINISH_REASONS: list(reasons),
                names.E2E: seconds,
            }
        )

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes of the transport."""
        self._span.note(attributes)

    def fail(self, kind: str) -> None:
        """Mark the request as failed."""
        self._span.fail(kind)


_current: ContextVar[RequestTrace | None] = ContextVar("request_trace", default=None)


def request_trace() -> RequestTrace | None:
    """Return the trace of the request that the running task works on; None if there is none."""
    return _current.get()


@contextmanager
def traced(tracing: Tracing, operation: str, headers: Mapping[str, str]) -> Iterator[RequestTrace]:
    """Trace the request that is worked on in the context, whose task works on nothing else."""
    span = tracing.serve(operation, headers)
    trace = RequestTrace(span, operation)
    _current.set(trace)
    current_trace.set(span.context)
    try:
        yield trace
    finally:
        span.end()
