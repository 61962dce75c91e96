"""The loop: what changed is marked, plans are made for what is marked, and carried out.

One task. Changes that come while a service is being reconciled are taken together in its next
turn, and turns keep a distance that grows with their own length, so that hundreds of nodes coming
up at once cost a handful of plans. Everything is planned anew at every interval, marked or not:
time alone changes plans. Knows nothing of kopf.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from dualpace.operator.apply import carry_out, collection_path
from dualpace.operator.client import ApiClient
from dualpace.operator.errors import ApiError
from dualpace.operator.images import ServiceImages
from dualpace.operator.names import SERVICE_LABEL
from dualpace.operator.plan import plan_service
from dualpace.operator.store import Store
from dualpace.operator.world import KINDS, Key

log = logging.getLogger(__name__)

_SHARED_KINDS = frozenset({"Node", "NodeProfile", "DualPaceService"})
"""A change of one of these can concern any service."""
_MIN_DISTANCE_S = 0.2
_REPLAN_S = 30.0
_RETRY_S = 5.0


class Controller:
    """Reconciles every service, for ever."""

    def __init__(
        self,
        client: ApiClient,
        images: ServiceImages,
        *,
        namespaces: tuple[str, ...],
        resync_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._client, self._images, self._namespaces = client, images, namespaces
        self._resync_s, self._clock = resync_s, clock
        self.store = Store(self._note)
        self._marked: set[Key] = set()
        self._failures: dict[Key, str] = {}
        self._wake = asyncio.Event()
        self.last_success_s = clock()
        """When a whole round was last completed; a probe looks at its age."""

    def age_s(self) -> float:
        """Return the seconds since a round was last completed."""
        return self._clock() - self.last_success_s

    async def run(self) -> None:
        """List, then plan and act, until cancelled."""
        next_listing_s = next_replan_s = self._clock()
        while True:
            if self._clock() >= next_listing_s:
                if not await self._list():
                    await asyncio.sleep(_RETRY_S)
                    continue
                next_listing_s = self._clock() + self._resync_s
            if self._clock() >= next_replan_s:
                self._marked |= self.store.world.services.keys()
                next_replan_s = self._clock() + _REPLAN_S
            began_s = self._clock()
            await self._round()
            self.last_success_s = self._clock()
            await asyncio.sleep(max(_MIN_DISTANCE_S, self._clock() - began_s))
            await self._pause(min(next_listing_s, next_replan_s) - self._clock())

    def _note(self, kind: str, before: Any, after: Any) -> None:
        """Mark the services that a change may concern."""
        if kind in _SHARED_KINDS:
            self._marked |= self.store.world.services.keys()
        for view in (before, after):
            if view is not None:
                self._marked.add(view.id.key if kind == "DualPaceService" else view.id.service)
        self._wake.set()

    async def _pause(self, seconds: float) -> None:
        if not self._marked and seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return
        self._wake.clear()

    async def _round(self) -> None:
        marked, self._marked = self._marked, set()
        for key in sorted(marked & self.store.world.services.keys()):
            await self._reconcile(key)
        for key in self._failures.keys() - self.store.world.services.keys():
            del self._failures[key]

    async def _reconcile(self, key: Key) -> None:
        try:
            plan = plan_service(
                key, self.store.world, self._images, datetime.now(UTC), self._failures.get(key, "")
            )
        except Exception as error:  # one service's bug must not stop the others
            log.exception("no plan for %s/%s", *key)
            self._failures[key] = f"the operator failed: {type(error).__name__}"
            return
        refused = await carry_out(self._client, plan.actions)
        # What was refused is told by the next plan, and tried again at the next interval.
        text = "" if not refused else f"{len(refused)} writes were refused; {refused[0]}"
        before, self._failures[key] = self._failures.get(key, ""), text
        if bool(text) != bool(before):
            self._marked.add(key)
            self._wake.set()

    async def _list(self) -> bool:
        """List every kind; returns whether that went well."""
        self.store.begin_listing()
        try:
            for kind in KINDS.values():
                selector = SERVICE_LABEL if kind.ours else ""
                spaces = self._namespaces if kind.namespaced and self._namespaces else ("",)
                bodies = [
                    body
                    for space in spaces
                    async for body in self._client.list_all(collection_path(kind, space), selector)
                ]
                self.store.take_listing(kind.name, bodies)
        except ApiError as error:
            log.warning("listing failed: %s", error)
            return False
        finally:
            self.store.end_listing()
        return True
