"""NEO's performance model: four tables of milliseconds a layer, and the knots they have.

It refuses arguments beyond its tables, as the original does.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dualpace.core.errors import PredictionRangeError
from dualpace.scheduling.baselines.neo.config import NeoConfig
from dualpace.scheduling.curves import Curve, Grid


def _powers_of_two(first: int, below: int) -> list[int]:
    powers = []
    power = 1
    while power < below:
        if power >= first:
            powers.append(power)
        power *= 2
    return powers


def linear_knots(config: NeoConfig) -> tuple[int, ...]:
    """Token rows at which the dense stages are measured."""
    last = config.max_tokens_in_batch
    return (*range(1, min(512, last)), *_powers_of_two(512, last), last)


def _three_quarter_knots(first: int, last: int) -> tuple[int, ...]:
    knots = [k for p in _powers_of_two(first, last) for k in (p * 3 // 4, p)]
    return (*knots, last)


def prefill_knots(config: NeoConfig) -> tuple[int, ...]:
    """Prompt lengths at which prefill attention is measured."""
    return _three_quarter_knots(config.block_size, config.max_tokens_in_batch)


def gpu_decode_knots(config: NeoConfig) -> tuple[int, ...]:
    """KV tokens at which decode attention on the GPU is measured."""
    return _three_quarter_knots(config.block_size, config.block_size * config.num_gpu_blocks)


def cpu_decode_knots(config: NeoConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Requests, and KV tokens, at which decode attention on the CPU is measured."""
    requests = (*_powers_of_two(1, config.max_batch_size), config.max_batch_size)
    tokens: set[int] = set()
    for count in requests:
        least = count * config.block_size
        most = min(least * config.max_blocks_per_seq, config.block_size * config.num_cpu_blocks)
        tokens |= {least, most, *_powers_of_two(least, most)}
    return requests, tuple(sorted(tokens))


@dataclass(frozen=True, slots=True)
class NeoTables:
    """Milliseconds a layer."""

    linr: Curve
    """Dense stages, against token rows."""
    pref: Curve
    """Prefill attention, against the length of one prompt."""
    gdec: Curve
    """Decode attention on the GPU, against KV tokens."""
    cdec: Grid
    """Decode attention on the CPU, against requests and KV tokens."""


def tables_from(
    config: NeoConfig,
    *,
    linr: Callable[[int], float],
    pref: Callable[[int], float],
    gdec: Callable[[int], float],
    cdec: Callable[[int, int], float],
) -> NeoTables:
    """Measure each function at the knots that the original would choose."""

    def curve(knots: tuple[int, ...], of: Callable[[int], float]) -> Curve:
        return Curve(knots, tuple(of(x) for x in knots))

    requests, tokens = cpu_decode_knots(config)
    return NeoTables(
        linr=curve(linear_knots(config), linr),
        pref=curve(prefill_knots(config), pref),
        gdec=curve(gpu_decode_knots(config), gdec),
        cdec=Grid(
            requests,
            tuple(Curve(tokens, tuple(cdec(s, n) for n in tokens)) for s in requests),
        ),
    )


class NeoPredictor:
    """Evaluates the tables. Raises PredictionRangeError beyond them."""

    def __init__(self, tables: NeoTables) -> None:
        self._tables = tables
        self._last_kv = tables.cdec.curves[0].last

    def linr(self, rows: int) -> float:
        """Dense stages of one layer over `rows` token rows."""
        return self._curve("linr", self._tables.linr, rows)

    def pref(self, length: int) -> float:
        """Attention of one prompt."""
        return self._curve("pref", self._tables.pref, length)

    def gdec(self, kv_tokens: int) -> float:
        """Decode attention on the GPU."""
        return self._curve("gdec", self._tables.gdec, kv_tokens)

    def cdec(self, requests: int, kv_tokens: int) -> float:
        """Decode attention on the CPU."""
        if requests > self._tables.cdec.last_rows or (requests and kv_tokens > self._last_kv):
            raise PredictionRangeError(f"cdec of {requests} requests, {kv_tokens} KV tokens")
        return self._tables.cdec(requests, kv_tokens)

    @staticmethod
    def _curve(name: str, curve: Curve, count: int) -> float:
        if count > curve.last:
            raise PredictionRangeError(f"{name} of {count}; the table ends at {curve.last}")
        return curve(count)
