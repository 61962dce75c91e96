"""Time as an argument: engines take a Clock, so that tests and the simulator can own it."""

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in seconds. Readings of one machine are comparable between processes."""

    def now(self) -> float:
        """Return seconds since an arbitrary fixed point."""
        ...


class SystemClock:
    """CLOCK_MONOTONIC: one time base for all processes and containers of a kernel."""

    def now(self) -> float:
        """Return seconds since an arbitrary fixed point."""
        return time.monotonic()
