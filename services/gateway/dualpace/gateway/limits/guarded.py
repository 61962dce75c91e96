"""What happens while Redis is down: limits of this gateway alone, or no requests at all."""

import logging
import time
from collections.abc import Callable, Sequence

from dualpace.core.errors import PeerLostError
from dualpace.gateway.limits.gcra import Charge, Limiter, Verdict
from dualpace.gateway.limits.memory import MemoryLimiter

log = logging.getLogger(__name__)

_REST_S = 1.0
"""After a failure Redis is left alone for so long: requests do not all wait for it in vain."""


class GuardedLimiter:
    """Implements Limiter over another one that may be lost."""

    def __init__(
        self,
        shared: Limiter,
        *,
        deny_when_down: bool,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = shared
        self._local = MemoryLimiter()
        self._deny = deny_when_down
        self._clock_s = clock_s
        self._rest_until_s = 0.0
        self.down = False
        """Whether the last use failed; shown as a metric."""

    async def charge(self, client: str, charges: Sequence[Charge]) -> Verdict:
        """Take all units if every limit has them. Raises PeerLostError if nobody may decide."""
        if not self._resting():
            try:
                verdict = await self._shared.charge(client, charges)
            except PeerLostError as error:
                self._lost(error)
            else:
                self._found()
                return verdict
        if self._deny:
            raise PeerLostError("the store of limits is down")
        return await self._local.charge(client, charges)

    async def debit(self, client: str, charges: Sequence[Charge]) -> None:
        """Take units that have been used already; what cannot be told to Redis is kept here."""
        if not self._resting():
            try:
                await self._shared.debit(client, charges)
            except PeerLostError as error:
                self._lost(error)
            else:
                self._found()
                return
        await self._local.debit(client, charges)

    async def close(self) -> None:
        """Let go of connections."""
        await self._shared.close()

    def _resting(self) -> bool:
        return self._clock_s() < self._rest_until_s

    def _lost(self, error: PeerLostError) -> None:
        self._rest_until_s = self._clock_s() + _REST_S
        if not self.down:
            policy = "requests are refused" if self._deny else "limits hold for each gateway alone"
            log.error("limits cannot be shared (%s): %s until Redis is back", error, policy)
        self.down = True

    def _found(self) -> None:
        if self.down:
            log.warning("limits are shared again: Redis is back")
        self.down = False
