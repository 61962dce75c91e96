"""What the engines report, as metrics: read when scraped, labelled by engine, bounded in number.

vLLM's three gauges are derived from it, with exactly one series each: waiting and running requests
of both engines summed, and the KV usage of the GPU alone.
"""

import logging
import re
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dualpace.core.request import Engine
from dualpace.gateway import metric_names as names
from dualpace.gateway.backend import Backend, EngineState

log = logging.getLogger(__name__)

_REPORTED_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_REPORTED = 64
_TAKEN = frozenset({names.ENGINE_CONNECTED, names.ENGINE_HEARTBEAT_AGE})


class EngineGauges(Collector):
    """Collects from a backend whenever the page is asked for."""

    def __init__(self, backend: Backend, model_name: str) -> None:
        self._backend = backend
        self._model_name = model_name

    def describe(self) -> list[Metric]:
        """Return nothing: which gauges there are is known only once engines report."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield vLLM's gauges, then those of every engine."""
        engines = self._backend.engines()
        yield self._single(
            names.REQUESTS_RUNNING, "Requests that run, on both engines.", _sum(engines, "running")
        )
        yield self._single(
            names.REQUESTS_WAITING, "Requests that wait, on both engines.", _sum(engines, "waiting")
        )
        yield self._single(
            names.KV_CACHE_USAGE,
            "Share of the GPU's KV blocks in use, 0 to 1.",
            _usage(engines[Engine.GPU].gauges) if Engine.GPU in engines else 0.0,
        )
        yield from _liveness(engines)
        yield from _reported(engines)

    def _single(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family


def _sum(engines: Mapping[Engine, EngineState], gauge: str) -> float:
    return sum(state.gauges.get(gauge, 0.0) for state in engines.values())


def _usage(gauges: Mapping[str, float]) -> float:
    total = gauges.get("total_blocks", 0.0)
    return 1.0 - gauges.get("free_blocks", total) / total if total > 0 else 0.0


def _liveness(engines: Mapping[Engine, EngineState]) -> Iterator[Metric]:
    connected = GaugeMetricFamily(
        names.ENGINE_CONNECTED, "Whether the engine is connected.", labels=("engine",)
    )
    heartbeat = GaugeMetricFamily(
        names.ENGINE_HEARTBEAT_AGE, "Since the engine's last sign of life.", labels=("engine",)
    )
    for engine, state in engines.items():
        connected.add_metric((engine.name.lower(),), float(state.connected))
        if state.heartbeat_age_s is not None:
            heartbeat.add_metric((engine.name.lower(),), state.heartbeat_age_s)
    yield connected
    yield heartbeat


def _reported(engines: Mapping[Engine, EngineState]) -> Iterator[Metric]:
    """Yield what the engines report; names that end in _total are counters."""
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for engine, state in engines.items():
        label = engine.name.lower()
        for reported, value in state.gauges.items():
            name = names.ENGINE_PREFIX + reported
            fits = name in families or len(families) < _MAX_REPORTED
            if name in _TAKEN or not fits or not _REPORTED_NAME.fullmatch(reported):
                log.debug("%r of the %s-engine is not exported", reported[:64], label)
                continue
            if name not in families:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                text = f"Reported by the engines: {reported}."
                families[name] = kind(name, text, labels=("engine",))
            families[name].add_metric((label,), value)
    yield from families.values()
