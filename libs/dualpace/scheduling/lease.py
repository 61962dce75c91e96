"""How much of the GPU the host may use: seconds per window, so that both sides stay predictable.

A bucket that fills at `share` of real time and holds one window's worth. A call is granted while
the bucket is not empty, and may overdraw it by itself: calls are short, and refusing the last one
would waste what was granted before. It knows nothing of what a call computes.
"""


class AssistLease:
    """GPU seconds granted to assist."""

    def __init__(self, *, share: float = 0.35, window_s: float = 0.25) -> None:
        assert 0.0 <= share <= 1.0
        assert window_s > 0.0
        self._share = share
        self._most = share * window_s
        self._left = self._most
        self._now = 0.0

    def granted(self, now: float) -> bool:
        """Whether a call may start now."""
        self._refill(now)
        return self._left > 0.0

    def next_grant_s(self, now: float) -> float:
        """Return the earliest time at which a call may start; infinity if none ever may."""
        self._refill(now)
        if self._left > 0.0:
            return now
        if self._share == 0.0:
            return float("inf")
        return now - self._left / self._share + 1e-9

    def charge(self, seconds: float) -> None:
        """Account for GPU time that a call took."""
        self._left -= seconds

    def _refill(self, now: float) -> None:
        if now > self._now:
            self._left = min(self._most, self._left + self._share * (now - self._now))
            self._now = now
