"""Limits kept in this process: for a single gateway, and for when Redis is down."""

import time
from collections.abc import Callable, Sequence

from dualpace.gateway.limits.gcra import Charge, Verdict, verdict

_SWEEP_EVERY = 1024
"""Charges between two sweeps of what has refilled completely."""


def _unix_us() -> float:
    return time.time() * 1e6


class MemoryLimiter:
    """Implements Limiter, on one event loop."""

    def __init__(self, now_us: Callable[[], float] = _unix_us) -> None:
        self._now_us = now_us
        self._spent_until_us: dict[tuple[str, str], float] = {}
        self._charges = 0

    async def charge(self, client: str, charges: Sequence[Charge]) -> Verdict:
        """Take all units if every limit has them, else none."""
        return self._take(client, charges, enforce=True)

    async def debit(self, client: str, charges: Sequence[Charge]) -> None:
        """Take units that have been used already."""
        self._take(client, charges, enforce=False)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _take(self, client: str, charges: Sequence[Charge], *, enforce: bool) -> Verdict:
        now = self._now_us()
        self._sweep(now)
        before = [
            max(self._spent_until_us.get((client, charge.limit.name), now), now) - now
            for charge in charges
        ]
        wanted = [
            ahead + charge.cost * charge.limit.interval_us
            for ahead, charge in zip(before, charges, strict=True)
        ]
        allowed = not enforce or all(
            ahead <= charge.limit.window_us for ahead, charge in zip(wanted, charges, strict=True)
        )
        if allowed:
            for ahead, charge in zip(wanted, charges, strict=True):
                self._spent_until_us[client, charge.limit.name] = now + ahead
        return verdict(charges, allowed=allowed, before_us=before)

    def _sweep(self, now: float) -> None:
        self._charges += 1
        if self._charges % _SWEEP_EVERY == 0:
            kept = {key: until for key, until in self._spent_until_us.items() if until > now}
            self._spent_until_us = kept
