"""Counters, histograms and gauges of the gateway; their names are in `metric_names`."""

import functools
from collections.abc import Callable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from dualpace.core.clock import Clock
from dualpace.core.request import Engine
from dualpace.gateway import metric_names as names
from dualpace.gateway.backend import Backend
from dualpace.gateway.choices import Choice
from dualpace.gateway.engine_gauges import EngineGauges
from dualpace.gateway.replies.common import usage_of
from dualpace.gateway.request_trace import request_trace
from dualpace.gateway.token_tallies import TokenTallies
from dualpace.pinning import pinning_gauges

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_FIRST_TOKEN_BUCKETS = (
    0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64,
    1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
)  # fmt: skip
# Decoding on the host is slower than on a GPU: fine steps from 5 ms to 5 s.
_INTER_TOKEN_BUCKETS = (
    0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12,
    0.16, 0.24, 0.32, 0.48, 0.64, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0,
)  # fmt: skip
_DURATION_BUCKETS = (
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0,
    10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
)  # fmt: skip


class Metrics:
    """Everything that is counted. `model_name` is a label so that boards for vLLM find it."""

    def __init__(self, backend: Backend, model_name: str) -> None:
        # One time-of-creation series beside each counter would double the page for nothing.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(EngineGauges(backend, model_name))
        self._model_name = model_name
        self._make_token_metrics()
        self._make_request_metrics()
        self._make_http_metrics()
        for name in pinning_gauges():
            gauge = Gauge(
                names.GATEWAY_PREFIX + name,
                f"Of the gateway's own threads: {name}.",
                registry=self._registry,
            )
            gauge.set_function(functools.partial(_pinning, name))

    def _make_token_metrics(self) -> None:
        self.prompt_tokens = self._counter(
            names.PROMPT_TOKENS, "Prompt tokens of generations that got a first token."
        )
        self.tokens = TokenTallies(self._model_name, _INTER_TOKEN_BUCKETS)
        self._registry.register(self.tokens)

    def _make_request_metrics(self) -> None:
        self.first_token = self._histogram(
            names.TTFT, "From arrival to the first token.", _FIRST_TOKEN_BUCKETS
        )
        self.e2e = self._histogram(
            names.E2E_LATENCY, "From arrival to the end of a generation.", _DURATION_BUCKETS
        )
        self._success = Counter(
            names.REQUEST_SUCCESS,
            "Generations that ended, by reason: stop, length, abort or error.",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        self._disconnects = Counter(
            names.CLIENT_DISCONNECTS,
            "Clients that left before their answer was complete, by how far it was.",
            ("state",),
            registry=self._registry,
        )

        self._refused = Counter(
            names.REFUSED,
            "Requests that were refused without being at fault, by reason.",
            ("reason",),
            registry=self._registry,
        )

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show a gauge that is read whenever the page is."""
        Gauge(name, text, registry=self._registry).set_function(read)

    def refused(self, reason: str) -> None:
        """Count a request that was refused: queue_full, rate_limit, deadline and the like."""
        self._refused.labels(reason).inc()

    def _make_http_metrics(self) -> None:
        self._http_requests = Counter(
            names.HTTP_REQUESTS,
            "HTTP requests.",
            ("handler", "method", "status"),
            registry=self._registry,
        )
        self._http_duration = Histogram(
            names.HTTP_DURATION,
            "From the request's head to the end of its response.",
            ("handler",),
            buckets=_DURATION_BUCKETS,
            registry=self._registry,
        )

    def _counter(self, name: str, text: str) -> Counter:
        family = Counter(name, text, ("model_name",), registry=self._registry)
        return family.labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(name, text, ("model_name",), buckets=buckets, registry=self._registry)
        return family.labels(self._model_name)

    def finished(self, reason: str) -> None:
        """Count a generation's end: stop, length, abort or error."""
        self._success.labels(self._model_name, reason).inc()

    def disconnected(self, state: str) -> None:
        """Count a client that left while its request was receiving, waiting or generating."""
        self._disconnects.labels(state).inc()

    def http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count an HTTP request; `handler` is a route's template, never a path that was sent."""
        self._http_requests.labels(handler, method, str(status)).inc()
        self._http_duration.labels(handler).observe(seconds)

    def page(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self._registry)


def _pinning(name: str) -> float:
    return pinning_gauges()[name]


class RequestObserver:
    """Times the generations of one request, for metrics and for its trace."""

    def __init__(self, metrics: Metrics, clock: Clock, arrival_s: float, num_choices: int) -> None:
        self._trace = request_trace()
        self._metrics = metrics
        self._clock = clock
        self._arrival_s = arrival_s
        self._last_token_s: list[float | None] = [None] * num_choices
        self._open = set(range(num_choices))
        self._first = True

    @property
    def state(self) -> str:
        """How far the request is: waiting before its first token, then generating."""
        begun = any(last is not None for last in self._last_token_s)
        return "generating" if begun else "waiting"

    def token(self, index: int, engine: Engine, prompt_tokens: int) -> None:
        """Note a token of a choice."""
        now, last = self._clock.now(), self._last_token_s[index]
        self._last_token_s[index] = now
        self._metrics.tokens.token(engine)
        if last is None:
            self._metrics.prompt_tokens.inc(prompt_tokens)
            self._metrics.first_token.observe(now - self._arrival_s)
            if self._trace is not None and self._first:
                self._first = False
                self._trace.first_token(now - self._arrival_s)
        else:
            self._metrics.tokens.gap(now - last)

    def finished(self, index: int, reason: str) -> None:
        """Note the end of a choice."""
        self._open.discard(index)
        self._metrics.finished(reason)
        self._metrics.e2e.observe(self._clock.now() - self._arrival_s)

    def given_up(self, reason: str) -> None:
        """Note that every choice still open will not end: abort or error."""
        for _ in self._open:
            self._metrics.finished(reason)
        self._open.clear()
        if self._trace is not None:
            self._trace.fail(reason)

    def over(self, choices: Sequence[Choice]) -> None:
        """Note that nothing more comes, whether it ended well or not."""
        if self._trace is not None:
            reasons = [c.finish_reason for c in choices if c.finish is not None]
            seconds = self._clock.now() - self._arrival_s
            self._trace.over(usage_of(choices), reasons, seconds)
