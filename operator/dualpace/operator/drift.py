"""Asks serving pods, now and then, whether their engines want a new profile.

The cpu-engine compares every iteration with its profile, and the gateway shows what it makes of it
among its metrics. A pod that cannot be asked says nothing: it is asked again next time. It decides
nothing; what was heard stands in the store, and plans are made from that.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

import aiohttp

from dualpace.operator import names
from dualpace.operator.observed import PodView
from dualpace.operator.store import Store

log = logging.getLogger(__name__)

_WANTED = re.compile(r'^dualpace_engine_profile_wanted\{engine="cpu"\} (\S+)$', re.MULTILINE)
_TIMEOUT_S = 5.0
_AT_ONCE = 16
_MAX_BYTES = 4 << 20

Fetch = Callable[[str], Awaitable[str]]


def wants_profile(metrics: str) -> bool:
    """Return what a page of metrics says; engines without a profile say nothing, and want none."""
    found = _WANTED.search(metrics)
    return found is not None and float(found[1]) > 0.0


class DriftWatch:
    """Keeps `Store` informed of the pods whose engines want a new profile."""

    def __init__(self, store: Store, fetch: Fetch, *, interval_s: float) -> None:
        self._store = store
        self._fetch = fetch
        self._interval_s = interval_s
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Ask, for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()

    async def look(self) -> None:
        """Ask every serving pod once."""
        pods = [
            pod
            for pod in self._store.world.views["Pod"].values()
            if pod.ready
            and pod.endpoint
            and pod.id.labels.get(names.COMPONENT_LABEL) == names.NODE_COMPONENT
        ]
        answers = await asyncio.gather(*map(self._ask, pods))
        self._store.note_drift(
            {pod.id.uid for pod, drifts in zip(pods, answers, strict=True) if drifts}
        )

    async def _ask(self, pod: PodView) -> bool:
        async with self._slots:
            try:
                return wants_profile(await self._fetch(f"http://{pod.endpoint}/metrics"))
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                log.debug("pod %s/%s was not heard: %s", *pod.id.key, error)
                return False


async def fetch_page(url: str) -> str:
    """Return a page's text. Raises aiohttp.ClientError, TimeoutError, ValueError."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
        response.raise_for_status()
        data = await response.content.read(_MAX_BYTES)
        return data.decode("utf-8")
