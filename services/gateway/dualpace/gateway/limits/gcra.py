"""Limits, charges against them, and what comes of a charge. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Limit:
    """So many units within a window, which refill evenly: `capacity` at once after a rest."""

    unit: str
    """What is counted: requests or tokens."""
    capacity: int
    window_s: int

    @property
    def interval_us(self) -> float:
        """Microseconds in which one unit refills."""
        return self.window_us / self.capacity

    @property
    def window_us(self) -> int:
        """The window in microseconds."""
        return self.window_s * 1_000_000

    @property
    def name(self) -> str:
        """Tells the limits of a client apart."""
        return f"{self.unit}:{self.window_s}"


@dataclass(frozen=True, slots=True)
class Charge:
    """Units to take from one limit."""

    limit: Limit
    cost: int


@dataclass(frozen=True, slots=True)
class LimitState:
    """How much of a limit is left."""

    limit: Limit
    remaining: int
    reset_s: float
    """Seconds until all of it is there again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a charge: all of it was taken, or nothing."""

    states: tuple[LimitState, ...]
    blocked_by: Limit | None = None
    retry_after_s: float | None = 0.0
    """None: never, it is more than the limit allows at once."""


class Limiter(Protocol):
    """Keeps what clients have spent."""

    async def charge(self, client: str, charges: Sequence[Charge]) -> Verdict:
        """Take all units if every limit has them, else none. Raises PeerLostError."""
        ...

    async def debit(self, client: str, charges: Sequence[Charge]) -> None:
        """Take units that have been used already, past a limit if need be. Raises PeerLostError."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


def verdict(charges: Sequence[Charge], *, allowed: bool, before_us: Sequence[float]) -> Verdict:
    """Return what comes of charges; before_us: how far ahead of now each budget was spent."""
    states: list[LimitState] = []
    worst: tuple[float, Limit] | None = None
    for charge, ahead in zip(charges, before_us, strict=True):
        limit = charge.limit
        wanted = ahead + charge.cost * limit.interval_us
        spent = wanted if allowed else ahead
        # A hair more than exact, so that rounding does not take a whole unit away.
        remaining = math.floor((limit.window_us - spent) / limit.interval_us + 1e-6)
        states.append(LimitState(limit, max(0, remaining), spent / 1e6))
        over = wanted - limit.window_us
        if not allowed and over > 0 and (worst is None or over > worst[0]):
            worst = (over, limit)
    if worst is None:
        return Verdict(tuple(states))
    over, limit = worst
    never = any(charge.cost > charge.limit.capacity for charge in charges)
    return Verdict(tuple(states), limit, None if never else over / 1e6)
