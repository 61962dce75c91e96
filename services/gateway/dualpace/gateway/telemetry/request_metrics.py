"""What is measured of each generation, under vLLM's names, and whether clients' targets were met.

Durations are of this process's clock, and of the engines' word for how long a request waited.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from dualpace.gateway.telemetry import metric_names as names

_FIRST_TOKEN_BUCKETS = (
    0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64,
    1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
)  # fmt: skip
# Decoding on the host is slower than on a GPU: fine steps from 5 ms to 5 s.
TOKEN_BUCKETS = (
    0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12,
    0.16, 0.24, 0.32, 0.48, 0.64, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0,
)  # fmt: skip
DURATION_BUCKETS = (
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0,
    10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
)  # fmt: skip
_COUNT_BUCKETS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long a generation that ended took, in seconds; None where that cannot be told."""

    e2e_s: float
    """From the request's arrival to the end."""
    queue_s: float | None
    """From its arrival at the engines to the start of its computation."""
    prefill_s: float | None
    """From there to its first token."""
    decode_s: float | None
    """From its first token to its last."""

    @property
    def inference_s(self) -> float | None:
        """From the start of its computation to its last token."""
        if self.prefill_s is None or self.decode_s is None:
            return None
        return self.prefill_s + self.decode_s


class RequestMetrics:
    """The families, one series each but for those by reason."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._labels = (model_name, names.VLLM_ENGINE)
        self.prompt_tokens = Counter(
            names.PROMPT_TOKENS,
            "Prompt tokens of generations that got a first token.",
            names.VLLM_LABELS,
            registry=registry,
        ).labels(*self._labels)
        self._success = Counter(
            names.REQUEST_SUCCESS,
            "Generations that ended, by reason: stop, length, abort or error.",
            (*names.VLLM_LABELS, "finished_reason"),
            registry=registry,
        )
        self._slo = Counter(
            names.SLO,
            "Generations whose client had a latency target, by target and outcome.",
            ("slo", "outcome"),
            registry=registry,
        )
        for reason in ("stop", "length", "abort", "error"):
            self._success.labels(*self._labels, reason)
        for slo in ("ttft", "tpot"):
            for outcome in ("met", "missed"):
                self._slo.labels(slo, outcome)
        self.first_token = self._histogram(
            names.TTFT, "From arrival to the first token.", _FIRST_TOKEN_BUCKETS
        )
        self._make_durations()
        self._prompt_length = self._histogram(
            names.REQUEST_PROMPT_TOKENS, "Prompt tokens of a generation.", _COUNT_BUCKETS
        )
        self._generated_length = self._histogram(
            names.REQUEST_GENERATION_TOKENS, "Tokens that it generated.", _COUNT_BUCKETS
        )

    def _make_durations(self) -> None:
        self._e2e = self._histogram(
            names.E2E_LATENCY, "From arrival to the end of a generation.", DURATION_BUCKETS
        )
        self._queue = self._histogram(
            names.QUEUE_TIME, "From a request's arrival to its computation.", DURATION_BUCKETS
        )
        self._prefill = self._histogram(
            names.PREFILL_TIME, "From there to its first token.", DURATION_BUCKETS
        )
        self._decode = self._histogram(
            names.DECODE_TIME, "From its first token to its last.", DURATION_BUCKETS
        )
        self._inference = self._histogram(
            names.INFERENCE_TIME, "From its computation to its last token.", DURATION_BUCKETS
        )
        self._per_token = self._histogram(
            names.TPOT,
            "Mean time between the tokens of a generation that has two or more.",
            TOKEN_BUCKETS,
        )

    def ended(self, reason: str) -> None:
        """Count a generation's end: stop, length, abort or error."""
        self._success.labels(*self._labels, reason).inc()

    def complete(self, durations: Durations, *, prompt_tokens: int, tokens: int) -> None:
        """Observe a generation that came to its end."""
        self._e2e.observe(durations.e2e_s)
        for histogram, seconds in (
            (self._queue, durations.queue_s),
            (self._prefill, durations.prefill_s),
            (self._decode, durations.decode_s),
            (self._inference, durations.inference_s),
        ):
            if seconds is not None:
                histogram.observe(seconds)
        if durations.decode_s is not None and tokens > 1:
            self._per_token.observe(durations.decode_s / (tokens - 1))
        self._prompt_length.observe(prompt_tokens)
        self._generated_length.observe(tokens)

    def slo(self, slo: str, *, met: bool) -> None:
        """Count whether a client's target was met: ttft or tpot."""
        self._slo.labels(slo, "met" if met else "missed").inc()

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(name, text, names.VLLM_LABELS, buckets=buckets, registry=self._registry)
        return family.labels(*self._labels)
