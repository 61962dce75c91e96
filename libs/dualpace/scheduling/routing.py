"""Where the dense stages of a host batch run: on the CPU, or lent to the GPU, stage by stage.

For each way the time of an iteration is predicted from the profile, and the GPU time that it takes
away. A way is worth its price if the host tokens it gains exceed the device tokens it costs
(`best_route`), with hysteresis so that the choice does not flap. It knows sizes, not requests.
"""

import enum
import math
from dataclasses import dataclass
from typing import Protocol

from dualpace.core.assist import AssistTerms
from dualpace.scheduling.assist import assist_s
from dualpace.scheduling.cost import GpuCosts, GpuWork, NodeCosts
from dualpace.scheduling.route import Route


class Pace(enum.Enum):
    """Whose work rules the time of an iteration."""

    HOST = enum.auto()
    """The CPU's, with every stage its own."""
    ATTENTION = enum.auto()
    """The CPU's, with dense stages lent."""
    DEVICE = enum.auto()
    """The GPU's, or the way there and back."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What an iteration would take."""

    route: Route
    host_s: float
    gpu_s: float
    """GPU time taken."""
    micro_batches: int = 1
    """In how many the batch goes."""
    pace: Pace = Pace.HOST
    """What an iteration waits for, layer by layer."""
    rows: int = 0
    kv_tokens: int = 0
    plain_s: float = 0.0
    """`host_s` by the profile alone, where somebody corrects."""
    stages_s: float = 0.0
    """`host_s` by corrected stage times alone, where sizes of batch are corrected, too."""


class Forecasts(Protocol):
    """Predicts iterations of the host on each route."""

    def forecast(self, route: Route, rows: int, kv_tokens: int, terms: AssistTerms) -> Forecast:
        """Predict an iteration of `rows` rows over `kv_tokens` KV tokens."""
        ...


class RouteCosts:
    """Predicts iterations of the host on each route."""

    def __init__(self, costs: NodeCosts, *, micro_batches: int = 2, riding: bool = True) -> None:
        self._costs = costs
        self.micro_batches = micro_batches
        self._riding = riding

    def forecast(self, route: Route, rows: int, kv_tokens: int, terms: AssistTerms) -> Forecast:
        """Predict an iteration of `rows` rows over `kv_tokens` KV tokens.

        An idle GPU reads its weights for each micro-batch again, so small batches go in fewer:
        whatever is fastest. A busy one has others to serve meanwhile, and gets as many as it may.
        """
        host = self._costs.host
        if route is Route.HOST:
            host_s = host.step_s(rows, kv_tokens)
            return Forecast(route, host_s, 0.0, rows=rows, kv_tokens=kv_tokens)
        most = min(self.micro_batches, rows)
        if terms.sweep_s > 0.0:
            return self._lent(route, most, rows, kv_tokens, terms)
        ways = [self._lent(route, n, rows, kv_tokens, terms) for n in range(most, 0, -1)]
        return min(ways, key=lambda way: way.host_s)

    def _lent(
        self, route: Route, parts: int, rows: int, kv_tokens: int, terms: AssistTerms
    ) -> Forecast:
        """Predict an iteration in `parts` micro-batches.

        Per layer the slowest of three paces rules: the CPU's work on all of them, the work of a GPU
        that does nothing else, or one micro-batch's way round, over CPU and GPU, which starts at a
        boundary of the GPU's own batch and so ends at one. A lease that binds slows all down.
        """
        host = self._costs.host
        part = -(-rows // parts)
        cpu_s = self.cpu_stage_s(route, part, -(-kv_tokens // parts))
        call_s = self.call_s(route, 1, part)
        lap_s = _until_boundary(cpu_s + self.link_s(part), terms.stage_s) + call_s
        layers = host.num_layers
        last_s = self.call_s(route, layers, part)
        taken_s = self._taken_s(route, part, call_s, (parts - 1) * cpu_s, terms)
        gpu_s = parts * (layers * taken_s + last_s)
        device_s = lap_s if terms.sweep_s > 0.0 else max(lap_s, parts * call_s)
        pace = Pace.ATTENTION if parts * cpu_s > device_s else Pace.DEVICE
        host_s = host.step_overhead_s + layers * max(parts * cpu_s, device_s) + lap_s + last_s
        if terms.sweep_s > 0.0:
            host_s = max(host_s, gpu_s / terms.share) if terms.share > 0.0 else math.inf
        return Forecast(route, host_s, gpu_s, parts, pace, rows, kv_tokens)

    def _taken_s(
        self, route: Route, rows: int, alone_s: float, slack_s: float, terms: AssistTerms
    ) -> float:
        """What a call takes of the GPU's time, in the mean.

        The sweep comes by within `slack_s`, while the host has other micro-batches to attend to,
        with probability `slack_s / sweep_s`; then the call rides, and the weights are read once.
        """
        if not self._riding or terms.sweep_s <= 0.0:
            return alone_s
        both = self.call_s(route, 1, terms.rows + rows)
        riding_s = both - self.call_s(route, 1, terms.rows)
        rides = min(1.0, slack_s / terms.sweep_s)
        return rides * min(riding_s, alone_s) + (1.0 - rides) * alone_s

    def cpu_stage_s(self, route: Route, rows: int, kv_tokens: int) -> float:
        """What the CPU does for one micro-batch between two calls."""
        host = self._costs.host
        seconds = host.attention_layer_s(rows, kv_tokens)
        if route is Route.FEED_FORWARD:
            seconds += host.pre_attention_s(rows)
        return seconds

    def call_s(self, route: Route, boundary: int, rows: int) -> float:
        """What the GPU does for one call of one micro-batch, on its own."""
        return assist_s(self._costs.gpu, boundary, rows, route is Route.ASSIST)

    def link_s(self, rows: int) -> float:
        """Both directions of one call."""
        return self._costs.link.assist_up_s(rows) + self._costs.link.assist_down_s(rows)


def _until_boundary(seconds: float, stage_s: float) -> float:
    """Round up to whole stages."""
    return seconds if stage_s <= 0.0 else math.ceil(seconds / stage_s) * stage_s


class Router:
    """Chooses a route per host batch."""

    def __init__(
        self,
        costs: Forecasts,
        *,
        routes: tuple[Route, ...] = (Route.ASSIST,),
        itl_target_s: float | None = None,
        hysteresis: float = 0.1,
    ) -> None:
        self._costs = costs
        self._routes = routes
        self._itl_target_s = itl_target_s
        self._hysteresis = hysteresis
        self._last = Route.HOST

    def choose(self, rows: int, kv_tokens: int, terms: AssistTerms) -> Forecast:
        """Return the forecast of the best route: most tokens per second, device losses deducted.

        A route that keeps the latency target goes before one that does not.
        """
        local = self._costs.forecast(Route.HOST, rows, kv_tokens, terms)
        if not terms.open:
            self._last = Route.HOST
            return local
        forecasts = [
            local,
            *(self._costs.forecast(r, rows, kv_tokens, terms) for r in self._routes),
        ]
        best = max(forecasts, key=lambda f: self._worth(f, rows, terms))
        self._last = best.route
        return best

    def _worth(self, forecast: Forecast, rows: int, terms: AssistTerms) -> tuple[bool, float]:
        """Tokens per second of the host, less those that the device loses meanwhile.

        This is the rule `rows (1 - T/T_host) > price G`, divided by T, for any number of routes.
        """
        gained = rows - terms.price * forecast.gpu_s
        favour = 1.0 + (self._hysteresis if forecast.route is self._last else 0.0)
        in_time = self._itl_target_s is None or forecast.host_s <= self._itl_target_s
        worth = gained / forecast.host_s
        return in_time, worth * favour if worth > 0 else worth / favour


def offer(
    gpu: GpuCosts, work: GpuWork | None, *, share: float, worth: float | None = None
) -> AssistTerms:
    """Return the terms of a GPU that runs iterations of this size; None: it has nothing to do.

    The price is what it loses meanwhile, of the `worth` tokens that an iteration brings. Without,
    these are its own decodes.
    """
    if work is None:
        return AssistTerms(open=share > 0.0, share=share)
    step_s = gpu.step_s(work)
    return AssistTerms(
        open=share > 0.0,
        price=(work.sampled_rows if worth is None else worth) / step_s,
        share=share,
        stage_s=gpu.layer_s(work),
        sweep_s=step_s,
        rows=work.rows,
    )
