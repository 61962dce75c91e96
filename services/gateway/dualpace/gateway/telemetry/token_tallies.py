"""What is counted at every token, where prometheus_client's own counters would cost too much.

Plain numbers, added to by the event loop alone; the page gets them when it is scraped. It knows no
requests.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dualpace.core.request import Engine
from dualpace.gateway.telemetry import metric_names as names


class TokenTallies(Collector):
    """Generated tokens, by engine, and the times between them."""

    def __init__(self, model_name: str, bounds_s: Sequence[float]) -> None:
        """bounds_s: upper bounds of the histogram's buckets, rising; the last one is added."""
        self._labels = (model_name, names.VLLM_ENGINE)
        self._bounds_s = tuple(bounds_s)
        self._tokens = dict.fromkeys(Engine, 0)
        self._gaps = [0] * (len(self._bounds_s) + 1)
        self._gaps_sum_s = 0.0

    def token(self, engine: Engine, gap_s: float | None = None) -> None:
        """Count a token, and the time since the one before it in its generation."""
        self._tokens[engine] += 1
        if gap_s is not None:
            self._gaps[bisect_left(self._bounds_s, gap_s)] += 1
            self._gaps_sum_s += gap_s

    def describe(self) -> list[Metric]:
        """Return the families without samples: their names are fixed."""
        return list(self.collect())

    def collect(self) -> Iterator[Metric]:
        """Yield everything counted so far."""
        generated = CounterMetricFamily(
            names.GENERATION_TOKENS,
            "Generated tokens that count towards usage.",
            labels=names.VLLM_LABELS,
        )
        generated.add_metric(self._labels, sum(self._tokens.values()))
        yield generated
        by_engine = CounterMetricFamily(
            names.TOKENS, "Generated tokens by engine.", labels=("engine",)
        )
        for engine, count in self._tokens.items():
            by_engine.add_metric((engine.name.lower(),), count)
        yield by_engine
        gaps = HistogramMetricFamily(
            names.ITL, "Between tokens of a generation.", labels=names.VLLM_LABELS
        )
        bounds = [*map(str, self._bounds_s), "+Inf"]
        gaps.add_metric(
            self._labels,
            buckets=[
                (bound, float(n)) for bound, n in zip(bounds, accumulate(self._gaps), strict=True)
            ],
            sum_value=self._gaps_sum_s,
        )
        yield gaps
