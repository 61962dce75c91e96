"""Whether predictions have been wrong for so long that measuring anew is worth it. Pure.

Corrections mend predictions from step to step; this looks at the same ratios from afar. It is
told of outcomes and asked whether the drift is steady: noise, single outliers and short episodes
are none. It knows no units but seconds of the clock that it is told.
"""

import math
from collections import deque

_LOOK_EVERY = 16


class DriftDetector:
    """Wants a new profile once measured and predicted differ steadily by more than `bound`.

    Steadily: over `hold_s` seconds, three quarters of the last `window` ratios lay beyond the
    bound, on one side. The wish is dropped when the median is halfway back, as a logarithm.
    """

    def __init__(
        self, *, bound: float = 1.5, hold_s: float = 60.0, window: int = 256, least: int = 64
    ) -> None:
        assert bound > 1.0
        assert 0 < least <= window
        self._bound = math.log(bound)
        self._hold_s = hold_s
        self._least = least
        self._logs: deque[float] = deque(maxlen=window)
        self._unlooked = 0
        self._side = 0
        self._since_s = 0.0
        self._median = 0.0
        self.wanted = False
        """Whether a new profile is wanted."""

    @property
    def ratio(self) -> float:
        """Measured to predicted, the median as last looked at; 1 before there are enough."""
        return math.exp(self._median)

    def observe(self, now_s: float, predicted: float, measured: float) -> None:
        """Take one outcome; `predicted` is the prediction before correction."""
        if not (0.0 < predicted < math.inf and 0.0 < measured < math.inf):
            return
        self._logs.append(math.log(measured / predicted))
        self._unlooked += 1
        if self._unlooked >= _LOOK_EVERY and len(self._logs) >= self._least:
            self._unlooked = 0
            self._look(now_s)

    def reset(self) -> None:
        """Forget everything: there is a new profile."""
        self._logs.clear()
        self._unlooked, self._side, self._median, self.wanted = 0, 0, 0.0, False

    def _look(self, now_s: float) -> None:
        logs = sorted(self._logs)
        lower, self._median, upper = (logs[len(logs) * part // 4] for part in (1, 2, 3))
        side = (lower > self._bound) - (upper < -self._bound)
        if side != self._side:
            self._side, self._since_s = side, now_s
        if side and now_s - self._since_s >= self._hold_s:
            self.wanted = True
        elif abs(self._median) < self._bound / 2:
            self.wanted = False
