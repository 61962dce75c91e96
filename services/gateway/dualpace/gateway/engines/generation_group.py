"""The generations behind one HTTP request, merged into one sequence of events, and ended together.

Leaving the `async with` block, for whatever reason, cancels every generation that has not ended,
once, and leaves no task behind. Runs on the event loop alone.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import TracebackType

from dualpace.core.errors import PeerLostError
from dualpace.gateway.engines.backend import Backend, Generation, GenerationEnd, GenerationEvent
from dualpace.gateway.errors import ApiError, server_error, unavailable
from dualpace.gateway.planning import ChoicePlan

log = logging.getLogger(__name__)


_NO_REASON = "The generation stopped without a reason."


class GenerationGroup:
    """Iterates over (choice index, its next events) until every choice has ended or was stopped."""

    def __init__(self, backend: Backend, plans: Sequence[ChoicePlan]) -> None:
        self._backend = backend
        self._plans = plans
        self._running: dict[int, Generation] = {}
        """Generations whose end has not come."""
        self._open: set[int] = set()
        """Choices whose end has not been returned."""
        self._single: AsyncIterator[Sequence[GenerationEvent]] | None = None
        """The events of the only choice: no task and no queue lie in between."""
        self._aborted: ApiError | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[tuple[int | None, Sequence[GenerationEvent] | ApiError]] = (
            asyncio.Queue()
        )
        """Of several choices; no choice means all of them."""

    async def __aenter__(self) -> "GenerationGroup":
        """Start every generation. Raises ApiError 503, and then none runs."""
        try:
            for plan in self._plans:
                generation = self._backend.generate(plan.prompt.token_ids, plan.params)
                self._running[plan.index] = generation
        except PeerLostError as error:
            self._cancel_running()
            raise unavailable(f"The node cannot generate now: {error}") from None
        except BaseException:
            self._cancel_running()
            raise
        self._open = set(self._running)
        if len(self._plans) == 1:
            [generation] = self._running.values()
            self._single = aiter(generation)
            return self
        self._pumps = [
            asyncio.create_task(self._pump(index, generation))
            for index, generation in self._running.items()
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cancel_running()
        if self._pumps:
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
        if isinstance(self._single, AsyncGenerator):
            await self._single.aclose()

    def __aiter__(self) -> "GenerationGroup":
        return self

    async def __anext__(self) -> tuple[int, Sequence[GenerationEvent]]:
        """Return the next events. Raises ApiError if the group was aborted or one broke."""
        if not self._open:
            raise StopAsyncIteration
        if self._single is not None:
            index = self._plans[0].index
            try:
                events = await anext(self._single)
            except StopAsyncIteration:
                raise self._aborted or server_error(_NO_REASON) from None
            except Exception as error:  # noqa: BLE001 - as in _pump
                raise self._aborted or _problem(error) from None
        else:
            index, events = await self._next_of_several()
        if isinstance(events[0], GenerationEnd):
            if self._aborted is not None:
                raise self._aborted
            self._running.pop(index, None)
            self._open.remove(index)
        return index, events

    def stop(self, index: int) -> None:
        """End one choice early: the engines are told, and nothing more of it is returned."""
        self._open.remove(index)
        generation = self._running.pop(index, None)
        if generation is not None:
            generation.cancel()

    def abort(self, error: ApiError) -> None:
        """Make the iteration raise `error` once it has returned what is there already."""
        if self._single is None:
            self._queue.put_nowait((None, error))
        elif self._aborted is None:
            self._aborted = error
            self._cancel_running()  # which ends the iteration

    def _cancel_running(self) -> None:
        while self._running:
            self._running.popitem()[1].cancel()

    async def _next_of_several(self) -> tuple[int, Sequence[GenerationEvent]]:
        while True:
            index, events = await self._queue.get()
            if index is not None and index not in self._open:
                continue  # of a choice that was stopped meanwhile
            if isinstance(events, ApiError):
                raise events
            assert index is not None, "only an abort concerns no choice"
            return index, events

    async def _pump(self, index: int, generation: Generation) -> None:
        problem: ApiError | None = server_error(_NO_REASON)
        try:
            async for events in generation:
                self._queue.put_nowait((index, events))
                if isinstance(events[0], GenerationEnd):
                    self._running.pop(index, None)
                    problem = None
        except Exception as error:  # noqa: BLE001 - _problem logs what is not expected
            problem = _problem(error)
        if problem is not None:
            self._queue.put_nowait((index, problem))


def _problem(error: Exception) -> ApiError:
    """Return what the client may know of a generation that broke."""
    if isinstance(error, PeerLostError):
        return unavailable(f"The node lost this request: {error}")
    log.error("a generation broke", exc_info=error)
    return server_error("The generation broke; the server's log tells more.")
