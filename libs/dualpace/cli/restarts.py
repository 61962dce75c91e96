"""Whether and when a service that died is started again. Pure: no processes, no clock."""

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 300.0
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 10.0


@dataclass(slots=True)
class Restarts:
    """Those of one service: at most `limit` within any `WINDOW_S`, ever later one after another."""

    limit: int
    _times_s: deque[float] = field(default_factory=deque)

    @property
    def count(self) -> int:
        """How many there were, as of the last question."""
        return len(self._times_s)

    def delay_s(self, now_s: float) -> float | None:
        """Return how long to wait before the restart that is due now; None: there is none.

        The first is made at once, the second after half a second, each later one after twice as
        long.
        """
        while self._times_s and self._times_s[0] <= now_s - WINDOW_S:
            self._times_s.popleft()
        count = len(self._times_s)
        if count >= self.limit:
            return None
        self._times_s.append(now_s)
        return min(_FIRST_DELAY_S * 2 ** (count - 1), _LONGEST_DELAY_S) if count else 0.0
