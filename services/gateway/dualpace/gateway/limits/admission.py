"""Bounds what waits for its first token, so that overload is told at once instead of by silence.

What runs is bounded by the engines: they take no more than they have room for, and the rest waits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dualpace.gateway.errors import overloaded
from dualpace.gateway.planning import ChoicePlan


class Waiting:
    """The generations of one request that wait, by choice."""

    def __init__(self, queue: "AdmissionQueue", plans: Sequence[ChoicePlan]) -> None:
        self._queue = queue
        self._tokens = {plan.index: len(plan.prompt.token_ids) for plan in plans}

    def begun(self, index: int) -> None:
        """Note a choice's first token; later ones change nothing."""
        tokens = self._tokens.pop(index, None)
        if tokens is not None:
            self._queue.num_requests -= 1
            self._queue.num_tokens -= tokens

    def over(self) -> None:
        """Note that none of them waits any more."""
        for index in list(self._tokens):
            self.begun(index)


class AdmissionQueue:
    """Counts generations and prompt tokens that wait; refuses what would be too much."""

    def __init__(self, *, max_requests: int, max_tokens: int, refused: Callable[[], None]) -> None:
        """`refused` is told of every refusal."""
        self._refused = refused
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self.num_requests = 0
        self.num_tokens = 0

    @contextmanager
    def entered(self, plans: Sequence[ChoicePlan]) -> Iterator[Waiting]:
        """Let a request wait. Raises ApiError 503; but whatever comes alone is let in."""
        tokens = sum(len(plan.prompt.token_ids) for plan in plans)
        if self.num_requests and (
            self.num_requests + len(plans) > self._max_requests
            or self.num_tokens + tokens > self._max_tokens
        ):
            self._refused()
            raise overloaded(
                f"{self.num_requests} generations with {self.num_tokens} prompt tokens wait "
                "already; try again later"
            )
        self.num_requests += len(plans)
        self.num_tokens += tokens
        waiting = Waiting(self, plans)
        try:
            yield waiting
        finally:
            waiting.over()
