"""Gives the choices of a request their events, and collects what is to be shown of them.

This runs for every token, so it is a plain function call between the engines and the answer: it
waits for nothing, and knows neither how events come nor where the answer goes.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from dualpace.gateway.choices import Choice, Delta
from dualpace.gateway.engines.backend import (
    GeneratedToken,
    GenerationEnd,
    GenerationEvent,
    GenerationStart,
)
from dualpace.gateway.engines.generation_group import GenerationGroup
from dualpace.gateway.limits.admission import Waiting
from dualpace.gateway.limits.deadline import FirstToken
from dualpace.gateway.telemetry.observer import RequestObserver

T = TypeVar("T")

Show = Callable[[Choice, Delta | None], T | None]
"""What a front makes of an event: called with its choice, and what became visible of it."""


class Uptake(Generic[T]):
    """The choices of one running request."""

    __slots__ = (
        "_choices",
        "_first_token",
        "_group",
        "_not_begun",
        "_observer",
        "_show",
        "_waiting",
    )

    def __init__(
        self,
        choices: Sequence[Choice],
        group: GenerationGroup,
        show: Show[T],
        *,
        observer: RequestObserver,
        waiting: Waiting,
        first_token: FirstToken,
    ) -> None:
        self._choices = choices
        self._group = group
        self._observer = observer
        self._waiting = waiting
        self._first_token = first_token
        self._show = show
        self._not_begun = {choice.plan.index for choice in choices}

    def take(self, index: int, events: Sequence[GenerationEvent]) -> list[T]:
        """Take a choice's next events; return what is shown. Raises ApiError where they fail."""
        choice = self._choices[index]
        shown: list[T] = []
        for event in events:
            if isinstance(event, GeneratedToken):
                delta = self._token(choice, event)
            elif isinstance(event, GenerationEnd):
                delta = choice.end(event)
            elif isinstance(event, GenerationStart):
                choice.waited_s = event.waited_s
                self._observer.started(index, event.waited_s)
                continue
            else:
                choice.scored(event)
                continue
            if choice.finish is not None:
                self._observer.finished(index, choice.finish.reason)
            part = self._show(choice, delta)
            if part is not None:
                shown.append(part)
            if choice.finish is not None:
                break
        return shown

    def _token(self, choice: Choice, token: GeneratedToken) -> Delta | None:
        """Take a token. One that completes a stop string ends its generation."""
        index = choice.plan.index
        if self._not_begun and index in self._not_begun:
            self._not_begun.remove(index)
            self._waiting.begun(index)
            self._first_token.came()
        delta = choice.push(token)
        self._observer.token(index, token.engine)
        if choice.finish is not None:
            self._group.stop(index)
        return delta
