"""What vLLM's metrics tell of an engine, made of what the two engines report; read when scraped.

Each of the gauges that endpoint pickers read has exactly one series: waiting and running requests
of both engines summed, and the KV usage of the GPU alone. What there is not here, such as a cache
of prefixes, is counted as vLLM would count its absence: nothing was looked up.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dualpace.core import iteration_tokens
from dualpace.core.request import Engine
from dualpace.gateway.engines.backend import Backend, EngineState
from dualpace.gateway.telemetry import metric_names as names

Engines = Mapping[Engine, EngineState]

_ABSENT_COUNTERS = (
    (names.PREFIX_CACHE_QUERIES, "Tokens looked up in a prefix cache; there is none."),
    (names.PREFIX_CACHE_HITS, "Tokens found in a prefix cache; there is none."),
    *((name, "Of speculative decoding, which is not done.") for name in names.SPECULATED),
)


class VllmGauges(Collector):
    """Collects from a backend whenever the page is asked for."""

    def __init__(self, backend: Backend, model_name: str) -> None:
        self._backend = backend
        self._labels = (model_name, names.VLLM_ENGINE)

    def describe(self) -> list[Metric]:
        """Return the families without samples: their names are fixed."""
        return list(self._families({}))

    def collect(self) -> Iterator[Metric]:
        """Yield everything there is to tell now."""
        return self._families(self._backend.engines())

    def _families(self, engines: Engines) -> Iterator[Metric]:
        gpu = engines[Engine.GPU].gauges if Engine.GPU in engines else {}
        cpu = engines[Engine.CPU].gauges if Engine.CPU in engines else {}
        waiting = _sum(engines, "waiting")
        yield self._gauge(
            names.REQUESTS_RUNNING, "Requests that run, on both engines.", _sum(engines, "running")
        )
        yield self._gauge(names.REQUESTS_WAITING, "Requests that wait, on both engines.", waiting)
        yield self._waiting_by_reason(waiting, gpu.get("compiling", 0.0))
        yield self._gauge(
            names.KV_CACHE_USAGE, "Share of the GPU's KV blocks in use, 0 to 1.", _usage(gpu)
        )
        yield self._counter(
            names.PREEMPTIONS,
            "Requests that lost their KV to others, on either engine, to be computed again.",
            gpu.get("preemptions_total", 0.0) + cpu.get("evictions_total", 0.0),
        )
        for name, text in _ABSENT_COUNTERS:
            yield self._counter(name, text, 0.0)
        yield self._iterations(engines)
        yield self._cache_config(gpu, cpu)
        yield self._lora()

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=names.VLLM_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=names.VLLM_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _waiting_by_reason(self, waiting: float, compiling: float) -> Metric:
        family = GaugeMetricFamily(
            names.REQUESTS_WAITING_BY_REASON,
            "Requests that wait, for room or for the compilation of their form.",
            labels=(*names.VLLM_LABELS, "reason"),
        )
        family.add_metric((*self._labels, "capacity"), max(0.0, waiting - compiling))
        family.add_metric((*self._labels, "deferred"), compiling)
        return family

    def _iterations(self, engines: Engines) -> Metric:
        family = HistogramMetricFamily(
            names.ITERATION_TOKENS,
            "Tokens that iterations computed, on either engine.",
            labels=names.VLLM_LABELS,
        )
        counted = iteration_tokens.joined(state.gauges for state in engines.values())
        bounds = [*(str(float(bound)) for bound in iteration_tokens.BOUNDS), "+Inf"]
        family.add_metric(
            self._labels,
            buckets=list(zip(bounds, counted.cumulative, strict=True)),
            sum_value=counted.tokens,
        )
        return family

    def _cache_config(self, gpu: Mapping[str, float], cpu: Mapping[str, float]) -> Metric:
        facts = {
            "block_size": gpu.get("block_size", 0.0),
            "num_gpu_blocks": gpu.get("total_blocks", 0.0),
            "num_cpu_blocks": cpu.get("total_blocks", 0.0),
        }
        family = GaugeMetricFamily(
            names.CACHE_CONFIG,
            "The KV caches: tokens of a block, and blocks.",
            labels=(*names.VLLM_LABELS, *facts),
        )
        family.add_metric((*self._labels, *(str(int(fact)) for fact in facts.values())), 1.0)
        return family

    def _lora(self) -> Metric:
        family = GaugeMetricFamily(
            names.LORA_REQUESTS,
            "LoRA adapters in use; none can be.",
            labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        )
        family.add_metric(("0", "", ""), 0.0)
        return family


def _sum(engines: Engines, gauge: str) -> float:
    return sum(state.gauges.get(gauge, 0.0) for state in engines.values())


def _usage(gauges: Mapping[str, float]) -> float:
    total = gauges.get("total_blocks", 0.0)
    return 1.0 - gauges.get("free_blocks", total) / total if total > 0 else 0.0
