"""Routes that are set, not chosen: for nodes without a profile, and for tests."""

from collections.abc import Sequence

from dualpace.core.assist import CLOSED, AssistTerms
from dualpace.scheduling.host_policy import UNLIMITED, HostShape
from dualpace.scheduling.micro_batches import balanced_split
from dualpace.scheduling.route import Route


class ForcedRoute:
    """Takes the routes of a pattern in turn, one an iteration, while the device offers assist."""

    def __init__(self, pattern: tuple[Route, ...], *, micro_batches: int = 2) -> None:
        assert pattern
        self._pattern = pattern
        self._micro_batches = micro_batches
        self._iterations = 0
        self.terms: AssistTerms = CLOSED
        """What the gpu-engine offers now; set by whoever hears of it."""

    def open_kv_tokens(self, rows: int, kv_tokens: int) -> int:
        """No bound."""
        del rows, kv_tokens
        return UNLIMITED

    def shape(self, kv_tokens: Sequence[int]) -> HostShape:
        """Return the next route of the pattern."""
        if not kv_tokens:
            return HostShape((), Route.HOST)
        route = self._pattern[self._iterations % len(self._pattern)]
        self._iterations += 1
        if route is Route.HOST or not self.terms.open:
            return HostShape((len(kv_tokens),), Route.HOST)
        return HostShape(balanced_split(kv_tokens, self._micro_batches), route)

    def observe(self, shape: HostShape, measured_s: float) -> None:
        """Nothing to learn."""
        del shape, measured_s
