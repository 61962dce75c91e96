"""What the engines report, as metrics: read when scraped, labelled by engine, bounded in number."""

import logging
import re
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dualpace.core import iteration_tokens
from dualpace.core.request import Engine
from dualpace.gateway.engines.backend import Backend, EngineState
from dualpace.gateway.telemetry import metric_names as names

log = logging.getLogger(__name__)

_REPORTED_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_REPORTED = 128
_TAKEN = frozenset({names.ENGINE_CONNECTED, names.ENGINE_HEARTBEAT_AGE})


class EngineGauges(Collector):
    """Collects from a backend whenever the page is asked for."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def describe(self) -> list[Metric]:
        """Return nothing: which gauges there are is known only once engines report."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield whether the engines are there, then every number of theirs."""
        engines = self._backend.engines()
        yield from _liveness(engines)
        yield from _reported(engines)


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
            if reported.startswith(iteration_tokens.PREFIX):
                continue  # a histogram of vLLM's is made of these
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
