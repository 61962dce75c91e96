"""Limits kept in Redis: every gateway on it enforces them together, by the clock of Redis.

One script checks and takes, so that charges of several gateways cannot cross. It never waits for
longer than a request would notice.
"""

import asyncio
from collections.abc import Callable, Sequence

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from dualpace.core.errors import PeerLostError
from dualpace.gateway.limits.gcra import Charge, Verdict, verdict

TIMEOUT_S = 0.05

_SCRIPT = """
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local allowed = 1
local before, until_us = {}, {}
for i, key in ipairs(KEYS) do
  local interval = tonumber(ARGV[3 * i])
  local window = tonumber(ARGV[3 * i + 1])
  local cost = tonumber(ARGV[3 * i + 2])
  local spent = math.max(tonumber(redis.call('GET', key) or now), now)
  before[i] = string.format('%.0f', spent - now)
  until_us[i] = spent + cost * interval
  if ARGV[2] == '1' and until_us[i] - now > window then allowed = 0 end
end
if allowed == 1 then
  for i, key in ipairs(KEYS) do
    local ahead = math.ceil((until_us[i] - now) / 1000) + 1
    redis.call('SET', key, string.format('%.0f', until_us[i]), 'PX', string.format('%.0f', ahead))
  end
end
return {allowed, before}
"""
"""ARGV: now in microseconds or '', whether limits hold, then interval, window and cost by key."""


class RedisLimiter:
    """Implements Limiter."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "dualpace:limit",
        timeout_s: float = TIMEOUT_S,
        now_us: Callable[[], float] | None = None,
    ) -> None:
        """Connect when first used. `now_us` is for tests: unset, the clock of Redis counts."""
        self._redis = Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._script = self._redis.register_script(_SCRIPT)
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._now_us = now_us

    async def charge(self, client: str, charges: Sequence[Charge]) -> Verdict:
        """Take all units if every limit has them, else none. Raises PeerLostError."""
        return await self._take(client, charges, enforce=True)

    async def debit(self, client: str, charges: Sequence[Charge]) -> None:
        """Take units that have been used already. Raises PeerLostError."""
        await self._take(client, charges, enforce=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _take(self, client: str, charges: Sequence[Charge], *, enforce: bool) -> Verdict:
        if not charges:
            return verdict((), allowed=True, before_us=())
        # Braces keep a client's limits on one shard of a cluster.
        keys = [f"{self._prefix}:{{{client}}}:{charge.limit.name}" for charge in charges]
        now = "" if self._now_us is None else f"{self._now_us():.0f}"
        arguments: list[str | int | float] = [now, int(enforce)]
        for charge in charges:
            arguments += [charge.limit.interval_us, charge.limit.window_us, charge.cost]
        try:
            async with asyncio.timeout(self._timeout_s):
                allowed, before = await self._script(keys=keys, args=arguments)
        except (RedisError, OSError, TimeoutError) as error:
            raise PeerLostError(f"Redis: {type(error).__name__}") from error
        return verdict(charges, allowed=bool(allowed), before_us=[float(ahead) for ahead in before])
