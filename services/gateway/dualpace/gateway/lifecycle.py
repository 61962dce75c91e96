"""Start, readiness and draining: whether requests are taken, and how they end at shutdown."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dualpace.gateway.engines.backend import Backend, NodeInfo
from dualpace.gateway.engines.generation_group import GenerationGroup
from dualpace.gateway.errors import unavailable

log = logging.getLogger(__name__)

_SHUTTING_DOWN = "The server is shutting down."
_STOP_TIMEOUT_S = 5.0
_ABORT_TIMEOUT_S = 2.0
"""How long ended requests get to write their last event."""


class Lifecycle:
    """Owns the backend's start and stop, and knows what runs. Lives on the event loop."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the backend cannot serve, or not any more; `raise_failure` has the reason."""
        self._backend_task: asyncio.Task[None] | None = None
        self._started = False
        self._failure: Exception | None = None
        self._draining = False
        self._aborted = False
        self._num_requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._groups: set[GenerationGroup] = set()

    def start(self) -> None:
        """Begin to connect to the engines, in the background: probes are answered meanwhile."""
        self._backend_task = asyncio.create_task(self._run_backend())

    async def stop(self) -> None:
        """Disconnect from the engines."""
        if self._backend_task is not None:
            self._backend_task.cancel()
            await asyncio.gather(self._backend_task, return_exceptions=True)
        try:
            await asyncio.wait_for(self.backend.stop(), _STOP_TIMEOUT_S)
        except TimeoutError:
            log.warning("the engines did not disconnect within %g s", _STOP_TIMEOUT_S)

    def unhealthy_reason(self) -> str | None:
        """Return why the engines cannot serve, or None."""
        reason = self.backend.unready_reason()
        if self._failure is not None:
            reason = str(self._failure)
        elif reason is None and not self._started:
            reason = "not connected yet"
        return None if reason is None else f"The node is not ready: {reason}."

    def unready_reason(self) -> str | None:
        """Return why no new request should come here, or None."""
        return _SHUTTING_DOWN if self._draining else self.unhealthy_reason()

    def node_info(self) -> NodeInfo:
        """Return the node's facts. Raises ApiError 503 while they are not known."""
        if not self._started:
            raise unavailable(self.unhealthy_reason() or _SHUTTING_DOWN)
        return self.backend.info

    def raise_failure(self) -> None:
        """Raise what made it impossible to serve, if something did."""
        if self._failure is not None:
            raise self._failure

    def check_ready(self) -> None:
        """Raise ApiError 503 if no new requests are taken."""
        reason = self.unready_reason()
        if reason is not None:
            raise unavailable(reason)

    @property
    def num_requests(self) -> int:
        """How many requests are worked on."""
        return self._num_requests

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep shutdown waiting while a request is worked on."""
        self._num_requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_requests -= 1
            if self._num_requests == 0:
                self._idle.set()

    @contextmanager
    def abortable(self, group: GenerationGroup) -> Iterator[None]:
        """Let shutdown end a request's generations. Raises ApiError 503 if it already has."""
        if self._aborted:
            raise unavailable(_SHUTTING_DOWN)
        self._groups.add(group)
        try:
            yield
        finally:
            self._groups.discard(group)

    async def drain(self, grace_s: float) -> None:
        """Take no new requests; wait for the running ones, and after `grace_s` end the rest."""
        self._draining = True
        log.info("draining: %d requests are running", self._num_requests)
        if await self._idle_within(grace_s):
            return
        log.warning("ending %d requests after %g s of grace", self._num_requests, grace_s)
        self.abort_all()
        await self._idle_within(_ABORT_TIMEOUT_S)

    def abort_all(self) -> None:
        """End every running generation with an error that says why."""
        self._draining = self._aborted = True
        for group in self._groups:
            group.abort(unavailable(_SHUTTING_DOWN))

    async def _idle_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                # A request goes from its handler to its stream with nothing counted in between.
                while self._num_requests:
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _run_backend(self) -> None:
        try:
            await self.backend.start()
            self._started = True
            log.info("ready: up to %d tokens a request", self.backend.info.max_model_len)
            self._failure = await self.backend.failed()
        except Exception as error:  # noqa: BLE001 - told to whoever runs the server
            self._failure = error
        self.on_failure()
