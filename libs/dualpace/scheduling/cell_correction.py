"""What iterations of about the same size took, over what the profile says of them.

Stage times are corrected by a few factors for all sizes of a batch, which fit some sizes better
than others. A size that was run goes by its own outcomes, remembered by route and by powers of two
of rows and KV tokens; all others by the corrected stage times. Few outcomes may mislead, and nobody
would try again what looks hopeless: so they never lead far from the corrected stage times. Pure.
"""

import statistics
from collections import defaultdict, deque
from dataclasses import replace

from dualpace.core.assist import AssistTerms
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import Forecast, Forecasts

_WINDOW = 5
_ENOUGH = 3
_FAR = 1.5


class CellCorrection:
    """Forecasts by the profile and its outcomes at a size, near those by corrected stage times."""

    def __init__(self, profile: Forecasts, corrected: Forecasts) -> None:
        self._profile = profile
        self._corrected = corrected
        self._told = defaultdict[tuple[Route, int, int], deque[float]](
            lambda: deque(maxlen=_WINDOW)
        )

    def forecast(self, route: Route, rows: int, kv_tokens: int, terms: AssistTerms) -> Forecast:
        """Predict an iteration of `rows` rows over `kv_tokens` KV tokens."""
        corrected = self._corrected.forecast(route, rows, kv_tokens, terms)
        plain_s = self._profile.forecast(route, rows, kv_tokens, terms).host_s
        host_s = stages_s = corrected.host_s
        told = self._told.get(_cell(route, rows, kv_tokens), ())
        if len(told) >= _ENOUGH:
            own_s = plain_s * statistics.median(told)
            host_s = min(max(own_s, stages_s / _FAR), stages_s * _FAR)
        return replace(corrected, host_s=host_s, plain_s=plain_s, stages_s=stages_s)

    def observe(self, forecast: Forecast, measured_s: float) -> None:
        """Take what came of an iteration; `plain_s` of its forecast is what the profile said."""
        if forecast.plain_s <= 0.0:
            return
        cell = _cell(forecast.route, forecast.rows, forecast.kv_tokens)
        self._told[cell].append(measured_s / forecast.plain_s)


def _cell(route: Route, rows: int, kv_tokens: int) -> tuple[Route, int, int]:
    return route, rows.bit_length(), kv_tokens.bit_length()
