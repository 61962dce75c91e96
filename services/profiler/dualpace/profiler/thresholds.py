"""What follows from a profile, in numbers that people can use, and why. Pure.

Engines decide by the tables themselves, at every step; these say what to expect of them.
"""

from collections.abc import Callable, Iterator

from dualpace.core.assist import AssistTerms
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.profile import Profile, Threshold
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts

CONTEXT = 1024
"""Tokens of each request, where a number of them has to be supposed."""
_MOST_ROWS = 4096
_IDLE = AssistTerms(open=True)


def derive_thresholds(profile: Profile, itl_target_s: float) -> tuple[Threshold, ...]:
    """Return the thresholds of a profile."""
    costs = NodeCosts(profile)
    return (
        _host_max_rows(costs, itl_target_s),
        *_assist(RouteCosts(costs)),
        _gpu_free_rows(costs),
        _host_kv_rate(profile),
    )


def _host_max_rows(costs: NodeCosts, target_s: float) -> Threshold:
    rows = _last(lambda n: costs.host.step_s(n, n * CONTEXT) <= target_s)
    took_ms = costs.host.step_s(max(1, rows), max(1, rows) * CONTEXT) * 1e3
    return Threshold(
        name="host_max_rows",
        value=float(rows),
        unit="requests",
        why=f"with every stage on the CPU and {CONTEXT} tokens each, an iteration of"
        f" {max(1, rows)} takes {took_ms:.0f} ms; the target is {target_s * 1e3:.0f} ms",
    )


def _assist(routes: RouteCosts) -> Iterator[Threshold]:
    """Yield from when lending dense stages to an idle GPU is faster, and by how much at best."""

    def gain(rows: int) -> float:
        local, lent = (
            routes.forecast(route, rows, rows * CONTEXT, _IDLE).host_s
            for route in (Route.HOST, Route.ASSIST)
        )
        return local / lent

    sizes = [1 << i for i in range(_MOST_ROWS.bit_length())]
    best = max(sizes, key=gain)
    yield Threshold(
        name="assist_best_gain",
        value=round(gain(best), 3),
        unit="times",
        why=f"at {best} requests of {CONTEXT} tokens an iteration on the CPU alone takes so many"
        " times as long as with an idle GPU's dense stages; 1 or less: assist does not pay",
    )
    paying = next((n for n in range(1, best + 1) if gain(n) > 1.0), None)
    if paying is not None:
        yield Threshold(
            name="assist_min_rows",
            value=float(paying),
            unit="requests",
            why=f"the fewest requests of {CONTEXT} tokens that an idle GPU's dense stages make"
            f" faster ({gain(paying):.2f} times); a busy GPU's price comes on top",
        )


def _gpu_free_rows(costs: NodeCosts) -> Threshold:
    one_s = costs.gpu.dense_layer_s(1)
    rows = _last(lambda n: costs.gpu.dense_layer_s(n) <= 1.25 * one_s)
    return Threshold(
        name="gpu_free_rows",
        value=float(rows),
        unit="rows",
        why="up to so many rows the device's dense stages take at most a quarter longer than for"
        " one: the weights are read once, whoever's rows they are",
    )


def _host_kv_rate(profile: Profile) -> Threshold:
    grid = profile.host.decode_attention
    tokens, rows = grid.curves[-1].last, grid.last_rows
    layer_bytes = tokens * profile.model.kv_bytes_per_token / profile.model.num_layers
    rate = layer_bytes / grid(rows, tokens) / 1e6
    return Threshold(
        name="host_kv_gbytes_per_s",
        value=round(rate, 2),
        unit="GB/s",
        why=f"the CPU's attention reads {layer_bytes / 1e6:.0f} MB of keys and values a layer, for"
        f" {rows} requests with {tokens} tokens in all, in {grid(rows, tokens):.3g} ms",
    )


def _last(holds: Callable[[int], bool]) -> int:
    """Return the largest number of rows for which something that ends to hold still holds."""
    low, high = 0, _MOST_ROWS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
