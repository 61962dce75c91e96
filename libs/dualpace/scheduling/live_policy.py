"""A host policy that learns from what comes of its decisions, and whose profile can be replaced.

Predictions are corrected by what came of earlier ones, so a profile that is off is mended where it
matters. A route that is never taken would never be mended: now and then the other one is
tried, a few times in a row, if it is not hopeless. Steady error raises the wish for a new profile.
Pure: its clock is the sum of the times it is told.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from dualpace.core.assist import CLOSED, AssistTerms
from dualpace.scheduling.cell_correction import CellCorrection
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.drift import DriftDetector
from dualpace.scheduling.host_policy import HostShape, ProfiledHost
from dualpace.scheduling.micro_batches import balanced_split
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import Forecast, Pace, RouteCosts, Router

_REASONS = ("closed", "host_cheaper", "assist_cheaper", "probe")


_WINDOW = 9
_ENOUGH = 3
"""Outcomes of a route that make it known, and tries in a row."""
_BOUND = 8.0
_PROBE_UNKNOWN = 32
_HOPELESS_UNKNOWN = 4.0
_HOPELESS = 1.5
"""A route that is slower by more than this than the one chosen is not tried."""


class CorrectedCosts(RouteCosts):
    """Forecasts from stage times that are corrected by what came of earlier forecasts.

    A profile may be wrong about one side alone, and whose times matter depends on the batch. So
    there is a factor for each pace: on the CPU's stages in an iteration of its own, on its
    attention while dense stages are lent (beside the first), and on the GPU with the way there. An
    outcome tells about the factor of the pace that was forecast. Factors are medians of the last
    outcomes: they follow a change in a few steps, and no single outlier.
    """

    def __init__(self, costs: NodeCosts, *, micro_batches: int = 2, riding: bool = True) -> None:
        super().__init__(costs, micro_batches=micro_batches, riding=riding)
        self.plain = RouteCosts(costs, micro_batches=micro_batches, riding=riding)
        self._told = {pace: deque[float](maxlen=_WINDOW) for pace in Pace}
        self._factors = dict.fromkeys(Pace, 1.0)

    def factor(self, pace: Pace) -> float:
        """What a part of the profile's times is multiplied by: from 1/8 to 8."""
        return self._factors[pace]

    def known(self, pace: Pace) -> bool:
        """Whether the factor rests on outcomes."""
        return len(self._told[pace]) >= _ENOUGH

    def forecast(self, route: Route, rows: int, kv_tokens: int, terms: AssistTerms) -> Forecast:
        """Predict an iteration."""
        forecast = super().forecast(route, rows, kv_tokens, terms)
        if route is not Route.HOST:
            return forecast  # its parts are corrected
        return replace(forecast, host_s=forecast.host_s * self._factors[Pace.HOST])

    def cpu_stage_s(self, route: Route, rows: int, kv_tokens: int) -> float:
        """What the CPU does for one micro-batch between two calls."""
        factor = self._factors[Pace.HOST] * self._factors[Pace.ATTENTION]
        return super().cpu_stage_s(route, rows, kv_tokens) * factor

    def call_s(self, route: Route, boundary: int, rows: int) -> float:
        """What the GPU does for one call of one micro-batch, on its own."""
        return super().call_s(route, boundary, rows) * self._factors[Pace.DEVICE]

    def link_s(self, rows: int) -> float:
        """Both directions of one call."""
        return super().link_s(rows) * self._factors[Pace.DEVICE]

    def observe(self, forecast: Forecast, measured_s: float) -> None:
        """Take what came of a forecast; `stages_s` of it is what was predicted here."""
        if forecast.stages_s <= 0.0 or math.isinf(forecast.stages_s):
            return
        pace = forecast.pace
        told = self._factors[pace] * measured_s / forecast.stages_s
        self._told[pace].append(min(max(told, 1 / _BOUND), _BOUND))
        if self.known(pace):
            self._factors[pace] = statistics.median(self._told[pace])


class LivePolicy:
    """Routes by a profile that may be replaced at any time."""

    def __init__(
        self,
        profile: Profile,
        *,
        itl_target_s: float | None = None,
        micro_batches: int = 2,
        riding: bool = True,
        routes: tuple[Route, ...] = (Route.ASSIST,),
        probe_every: int = 1024,
    ) -> None:
        """`probe_every`: iterations between tries of the other route, once it is known."""
        assert probe_every > _PROBE_UNKNOWN
        self._itl_target_s = itl_target_s
        self._micro_batches = micro_batches
        self._riding = riding
        self._routes = routes
        self._probe_every = probe_every
        self._drift = DriftDetector()
        self._clock_s = 0.0
        self._iterations = 0
        self._terms = CLOSED
        self.decisions = dict.fromkeys(_REASONS, 0)
        """How often a route was taken for each reason."""
        self.replace(profile)

    @property
    def terms(self) -> AssistTerms:
        """What the gpu-engine offers now; set by whoever hears of it."""
        return self._terms

    @terms.setter
    def terms(self, terms: AssistTerms) -> None:
        self._terms = self._host.terms = terms

    @property
    def profile_wanted(self) -> bool:
        """Whether predictions have been wrong for so long that measuring anew is worth it."""
        return self._drift.wanted

    def replace(self, profile: Profile) -> None:
        """Go by another profile from now on; nothing is remembered of the one before."""
        self._costs = CorrectedCosts(
            NodeCosts(profile), micro_batches=self._micro_batches, riding=self._riding
        )
        self._cells = CellCorrection(self._costs.plain, self._costs)
        router = Router(self._cells, routes=self._routes, itl_target_s=self._itl_target_s)
        self._host = ProfiledHost(self._costs, router, itl_target_s=self._itl_target_s)
        self._host.terms = self._terms
        self._drift.reset()

    def open_kv_tokens(self, rows: int, kv_tokens: int) -> int:
        """How many KV tokens one more row may bring beside `rows` rows that hold `kv_tokens`."""
        return self._host.open_kv_tokens(rows, kv_tokens)

    def shape(self, kv_tokens: Sequence[int]) -> HostShape:
        """How to run a batch, given each row's KV tokens."""
        shape = self._host.shape(kv_tokens)
        if not kv_tokens:
            return shape
        self._iterations += 1
        reason = "host_cheaper" if shape.route is Route.HOST else "assist_cheaper"
        if not self._terms.open:
            reason = "closed"
        elif (probe := self._probe(shape, kv_tokens)) is not None:
            shape, reason = probe, "probe"
        self.decisions[reason] += 1
        return shape

    def observe(self, shape: HostShape, measured_s: float) -> None:
        """Take the time that an iteration of this shape took."""
        self._clock_s += measured_s
        if shape.forecast is not None:
            self._costs.observe(shape.forecast, measured_s)
            self._cells.observe(shape.forecast, measured_s)
            self._drift.observe(self._clock_s, shape.forecast.plain_s, measured_s)

    def gauges(self) -> dict[str, float]:
        """Numbers for metrics."""
        return {
            **{f"route_{reason}_total": count for reason, count in self.decisions.items()},
            "correction_host": self._costs.factor(Pace.HOST),
            "correction_attention": self._costs.factor(Pace.ATTENTION),
            "correction_assist": self._costs.factor(Pace.DEVICE),
            "profile_drift": self._drift.ratio,
            "profile_wanted": self._drift.wanted,
        }

    def _probe(self, shape: HostShape, kv_tokens: Sequence[int]) -> HostShape | None:
        """Return the shape that was not chosen if it is time to try it, and it is not hopeless.

        An unknown route is tried soon even if it looks bad: it may be the profile that is.
        """
        assert shape.forecast is not None
        route = Route.ASSIST if shape.route is Route.HOST else Route.HOST
        forecast = self._cells.forecast(route, len(kv_tokens), sum(kv_tokens), self._terms)
        known = self._costs.known(forecast.pace)
        if self._iterations % (self._probe_every if known else _PROBE_UNKNOWN) >= _ENOUGH:
            return None
        if forecast.host_s > (_HOPELESS if known else _HOPELESS_UNKNOWN) * shape.forecast.host_s:
            return None
        return HostShape(balanced_split(kv_tokens, forecast.micro_batches), route, forecast)
