"""One running request as the gateway sees it: events of two engines put into one order.

It keeps the tokens seen so far: should no engine have the request any more, it is submitted again
with them, and goes on where it was.

Tokens carry positions. A repeated position is dropped, a later one waits until those before it have
come: while a request moves, its tokens arrive on two streams that know nothing of each other.
"""

import asyncio
from collections.abc import Callable, Sequence

from dualpace.core.messages import PromptLogprobs, RequestEvent, StartEvent, Submit, TokenEvent
from dualpace.core.request import Engine, FinishReason, Request, other_engine
from dualpace.gateway.engines.backend import (
    GeneratedToken,
    GenerationEnd,
    GenerationEvent,
    GenerationStart,
    ScoredPrompt,
)

_MOST_AT_ONCE = 64
"""Events that a slow reader gets together: all tokens of a long text would hold up the others."""


class NodeGeneration:
    """Implements backend.Generation. All methods run in the event loop."""

    def __init__(
        self, request: Request, prompt: tuple[int, ...], abandon: Callable[[int], None]
    ) -> None:
        self.request_id = request.request_id
        self.waiting_since_s: float | None = None
        """When an engine was lost, if no token has come since."""
        self.moved = False
        """Whether it has been submitted more than once."""
        self._request = request
        self._prompt = prompt
        self._generated: list[int] = []
        self._next = request.prompt_tokens
        self._started = False
        self._next_scored = 1
        self._early: dict[int, GeneratedToken] = {}
        self._end: tuple[int, GenerationEnd] | None = None
        """The position at which the request ends, once known."""
        self._ready: list[GenerationEvent] = []
        self._reader: asyncio.Future[None] | None = None
        """Of whoever waits for events."""
        self._abandon = abandon
        self._done = False
        self._over = False
        """Whether the end has been read."""

    @property
    def done(self) -> bool:
        """Whether the end has been queued; nothing that comes later matters."""
        return self._done

    @property
    def next_position(self) -> int:
        """The first position whose token is not there yet."""
        return self._next

    def submission(self) -> Submit:
        """Return what makes an engine go on behind the tokens that are there."""
        return Submit(self._request, self._prompt, tuple(self._generated))

    def end_if_complete(self) -> bool:
        """End a request that lost its engine after its last token, but before its end was told."""
        if self._generated and not self._done:
            reason = self._request.finish_reason(self._next, self._generated[-1])
            if reason is not None:
                self._finish(GenerationEnd(reason))
        return self._done

    def __aiter__(self) -> "NodeGeneration":
        return self

    async def __anext__(self) -> Sequence[GenerationEvent]:
        """Return what is there; wait if nothing is."""
        if self._over:
            raise StopAsyncIteration
        while not self._ready:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        # The end comes by itself.
        count = min(len(self._ready) - self._done, _MOST_AT_ONCE) or 1
        events = self._ready[:count]
        del self._ready[:count]
        self._over = self._done and not self._ready
        return events

    def cancel(self) -> None:
        """Give the request up."""
        if not self._done:
            self._finish(GenerationEnd(FinishReason.CANCELLED))
            self._abandon(self.request_id)

    def fail(self, message: str) -> None:
        """End with an error; its engines are not asked any more."""
        if not self._done:
            self._finish(GenerationEnd(FinishReason.ERROR, message))

    def take(self, engine: Engine, event: RequestEvent) -> None:
        """Take an engine's event, in that engine's order."""
        if self._done:
            return
        if isinstance(event, TokenEvent):
            self._take_token(engine, event)
        elif isinstance(event, PromptLogprobs):
            self._take_scores(event)
        elif isinstance(event, StartEvent):
            self._take_start(event)
        elif event.reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._end = (event.end_position, GenerationEnd(event.reason, event.message))
        else:
            self._finish(GenerationEnd(event.reason, event.message))
            return
        if self._end is not None and self._next >= self._end[0]:
            self._finish(self._end[1])

    def _take_token(self, engine: Engine, event: TokenEvent) -> None:
        if event.position < self._next:
            return
        self.waiting_since_s = None
        maker = other_engine(engine) if event.repeat else engine
        token = GeneratedToken(
            event.position, event.token_id, maker, event.logprobs, event.assisted
        )
        if event.position > self._next:
            self._early.setdefault(event.position, token)
            return
        self._accept(token)
        while self._next in self._early:
            self._accept(self._early.pop(self._next))

    def _accept(self, token: GeneratedToken) -> None:
        self._generated.append(token.token_id)
        self._next += 1
        self._tell(token)

    def _take_start(self, event: StartEvent) -> None:
        """Pass the first one on: an engine that died and came back begins once more."""
        if not self._started:
            self._started = True
            self._tell(GenerationStart(event.waited_s))

    def _take_scores(self, event: PromptLogprobs) -> None:
        """Pass on what is new: a prompt that is computed again is scored from where it ended."""
        end = event.start + len(event.tokens)
        if event.start <= self._next_scored < end:
            new = event.tokens[self._next_scored - event.start :]
            self._tell(ScoredPrompt(self._next_scored, new))
            self._next_scored = end

    def _finish(self, end: GenerationEnd) -> None:
        self._done = True
        self._early.clear()
        self._tell(end)

    def _tell(self, event: GenerationEvent) -> None:
        self._ready.append(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
