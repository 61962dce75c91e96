"""Counters, histograms and gauges of the gateway; their names are in `metric_names`."""

import functools
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from dualpace.gateway.engines.backend import Backend
from dualpace.gateway.telemetry import metric_names as names
from dualpace.gateway.telemetry.engine_gauges import EngineGauges
from dualpace.gateway.telemetry.request_metrics import (
    DURATION_BUCKETS,
    TOKEN_BUCKETS,
    RequestMetrics,
)
from dualpace.gateway.telemetry.token_tallies import TokenTallies
from dualpace.gateway.telemetry.vllm_gauges import VllmGauges
from dualpace.pinning import pinning_gauges

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """Everything that is counted. `model_name` is a label so that boards for vLLM find it."""

    def __init__(self, backend: Backend, model_name: str) -> None:
        # One time-of-creation series beside each counter would double the page for nothing.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(VllmGauges(backend, model_name))
        self._registry.register(EngineGauges(backend))
        self._model_name = model_name
        self.tokens = TokenTallies(model_name, TOKEN_BUCKETS)
        self._registry.register(self.tokens)
        self.requests = RequestMetrics(self._registry, model_name)
        self._make_outcomes()
        self._make_http_metrics()
        for name in pinning_gauges():
            gauge = Gauge(
                names.GATEWAY_PREFIX + name,
                f"Of the gateway's own threads: {name}.",
                registry=self._registry,
            )
            gauge.set_function(functools.partial(_pinning, name))

    def _make_outcomes(self) -> None:
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
        rejections = Counter(
            names.ADMISSION_REJECTIONS,
            "Requests that were refused because too much waited already.",
            (*names.VLLM_LABELS, "reason"),
            registry=self._registry,
        )
        self._queue_full = rejections.labels(self._model_name, names.VLLM_ENGINE, "queue_full")

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show a gauge that is read whenever the page is."""
        Gauge(name, text, registry=self._registry).set_function(read)

    def refused(self, reason: str) -> None:
        """Count a request that was refused: queue_full, rate_limit, deadline and the like."""
        self._refused.labels(reason).inc()
        if reason == "queue_full":
            self._queue_full.inc()

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
            buckets=DURATION_BUCKETS,
            registry=self._registry,
        )

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
