"""Charges a client for its requests and tokens, and tells it what is left.

A request is charged when it comes, its prompt once it is tokenized, and what was generated when it
is over: a client may overdraw its tokens by what it has running, and waits until that has refilled.
"""

import asyncio
import logging
import math
from collections.abc import Callable, MutableMapping

from dualpace.core.errors import PeerLostError
from dualpace.gateway.errors import rate_limited, unavailable
from dualpace.gateway.limits.gcra import Charge, Limiter, LimitState
from dualpace.gateway.limits.keys import Client

log = logging.getLogger(__name__)


class Metering:
    """The limits of all clients."""

    def __init__(self, limiter: Limiter, refused: Callable[[str], None]) -> None:
        self._limiter = limiter
        self._refused = refused
        self._debits: set[asyncio.Task[None]] = set()

    def meter(self, client: Client, headers: MutableMapping[str, str]) -> "Meter":
        """Return the meter of one request; what is left is told in its answer's headers."""
        return Meter(self, client, headers)

    async def close(self) -> None:
        """Finish what is under way and let go of connections."""
        await asyncio.gather(*self._debits)
        await self._limiter.close()

    async def charge(
        self, client: Client, unit: str, cost: int, headers: MutableMapping[str, str]
    ) -> None:
        """Charge a client. Raises ApiError 429 if it has not so much left, 503 if nobody knows."""
        charges = _charges(client, unit, cost)
        if not charges:
            return
        try:
            verdict = await self._limiter.charge(client.name, charges)
        except PeerLostError:
            self._refused("limits_unknown")
            raise unavailable("The limits of this key cannot be checked now.") from None
        _tell(verdict.states, headers)
        if verdict.blocked_by is not None:
            self._refused("rate_limit")
            limit = verdict.blocked_by
            window = "minute" if limit.window_s == 60 else "day"
            raise rate_limited(
                f"This key may use {limit.capacity} {limit.unit} a {window}; this request needs "
                f"{cost}.",
                verdict.retry_after_s,
            )

    def debit(self, client: Client, unit: str, cost: int) -> None:
        """Charge for what has been used, in the background."""
        charges = _charges(client, unit, cost)
        if charges and cost:
            task = asyncio.create_task(self._debit(client, charges))
            self._debits.add(task)
            task.add_done_callback(self._debits.discard)

    async def _debit(self, client: Client, charges: list[Charge]) -> None:
        try:
            await self._limiter.debit(client.name, charges)
        except PeerLostError as error:
            log.warning("used tokens were not charged: %s", error)


class Meter:
    """Charges one request."""

    def __init__(
        self, metering: Metering, client: Client, headers: MutableMapping[str, str]
    ) -> None:
        self._metering = metering
        self._client = client
        self._headers = headers

    async def request(self) -> None:
        """Charge for the request itself. Raises ApiError 429 or 503."""
        await self._metering.charge(self._client, "requests", 1, self._headers)

    async def prompt(self, tokens: int) -> None:
        """Charge for its prompts. Raises ApiError 429 or 503."""
        await self._metering.charge(self._client, "tokens", tokens, self._headers)

    def generated(self, tokens: int) -> None:
        """Charge for what was generated."""
        self._metering.debit(self._client, "tokens", tokens)


def _charges(client: Client, unit: str, cost: int) -> list[Charge]:
    return [Charge(limit, cost) for limit in client.limits if limit.unit == unit]


def _tell(states: tuple[LimitState, ...], headers: MutableMapping[str, str]) -> None:
    """Write the headers that clients of OpenAI know, of the limit that has least left."""
    state = min(states, key=lambda state: state.remaining / state.limit.capacity)
    unit = state.limit.unit
    headers[f"x-ratelimit-limit-{unit}"] = str(state.limit.capacity)
    headers[f"x-ratelimit-remaining-{unit}"] = str(state.remaining)
    headers[f"x-ratelimit-reset-{unit}"] = f"{math.ceil(state.reset_s * 1000)}ms"
