"""Time that a test moves."""


class ManualClock:
    """Implements core.clock.Clock."""

    def __init__(self, now_s: float = 1.0) -> None:
        self._now_s = now_s

    def now(self) -> float:
        """Return the current reading, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0
        self._now_s += seconds
