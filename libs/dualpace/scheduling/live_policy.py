"""A host policy that learns from what comes of its decisions, and whose profile can be replaced.

Every route's predictions are corrected by its own outcomes, so a profile that is off is mended
where it matters. A route that is never taken would never be mended: now and then the other one is
tried, a few times in a row, if it is not hopeless. Steady error raises the wish for a new profile.
Pure: its clock is the sum of the times it is told.
"""

import statistics
from collections import deque
from collections.abc import Sequence

from dualpace.core.assist import CLOSED, AssistTerms
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.drift import DriftDetector
from dualpace.scheduling.host_policy import HostShape, ProfiledHost
from dualpace.scheduling.micro_batches import balanced_split
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import Forecast, RouteCosts, Router

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
    """Forecasts, each multiplied by the median of what its route's last outcomes were of its own.

    The median follows a change in a few steps, and no single outlier.
    """

    def __init__(self, costs: NodeCosts, *, micro_batches: int = 2) -> None:
        super().__init__(costs, micro_batches=micro_batches)
        self._ratios = {route: deque[float](maxlen=_WINDOW) for route in Route}
        self._factors = dict.fromkeys(Route, 1.0)

    def factor(self, route: Route) -> float:
        """What a route's forecasts are multiplied by: from 1/8 to 8."""
        return self._factors[route]

    def known(self, route: Route) -> bool:
        """Whether the factor rests on outcomes."""
        return len(self._ratios[route]) >= _ENOUGH

    def forecast(self, route: Route, rows: int, kv_tokens: int, terms: AssistTerms) -> Forecast:
        """Predict an iteration."""
        plain = super().forecast(route, rows, kv_tokens, terms)
        return Forecast(route, plain.host_s * self.factor(route), plain.gpu_s)

    def observe(self, forecast: Forecast, measured_s: float) -> float:
        """Take what came of a forecast; returns what it was before correction."""
        route = forecast.route
        plain_s = forecast.host_s / self.factor(route)
        if plain_s > 0.0:
            self._ratios[route].append(min(max(measured_s / plain_s, 1 / _BOUND), _BOUND))
            if self.known(route):
                self._factors[route] = statistics.median(self._ratios[route])
        return plain_s


class LivePolicy:
    """Routes by a profile that may be replaced at any time."""

    def __init__(
        self,
        profile: Profile,
        *,
        itl_target_s: float | None = None,
        micro_batches: int = 2,
        probe_every: int = 1024,
    ) -> None:
        """`probe_every`: iterations between tries of the other route, once it is known."""
        assert probe_every > _PROBE_UNKNOWN
        self._itl_target_s = itl_target_s
        self._micro_batches = micro_batches
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
        self._costs = CorrectedCosts(NodeCosts(profile), micro_batches=self._micro_batches)
        router = Router(self._costs, itl_target_s=self._itl_target_s)
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
            predicted_s = self._costs.observe(shape.forecast, measured_s)
            self._drift.observe(self._clock_s, predicted_s, measured_s)

    def gauges(self) -> dict[str, float]:
        """Numbers for metrics."""
        return {
            **{f"route_{reason}_total": count for reason, count in self.decisions.items()},
            "correction_host": self._costs.factor(Route.HOST),
            "correction_assist": self._costs.factor(Route.ASSIST),
            "profile_drift": self._drift.ratio,
            "profile_wanted": self._drift.wanted,
        }

    def _probe(self, shape: HostShape, kv_tokens: Sequence[int]) -> HostShape | None:
        """Return the shape that was not chosen if it is time to try it, and it is not hopeless.

        An unknown route is tried soon even if it looks bad: it may be the profile that is.
        """
        assert shape.forecast is not None
        route = Route.ASSIST if shape.route is Route.HOST else Route.HOST
        known = self._costs.known(route)
        if self._iterations % (self._probe_every if known else _PROBE_UNKNOWN) >= _ENOUGH:
            return None
        forecast = self._costs.forecast(route, len(kv_tokens), sum(kv_tokens), self._terms)
        if forecast.host_s > (_HOPELESS if known else _HOPELESS_UNKNOWN) * shape.forecast.host_s:
            return None
        parts = 1 if route is Route.HOST else self._micro_batches
        return HostShape(balanced_split(kv_tokens, parts), route, forecast)
