"""Virtual time: actions in order of their time, equal times in the order they were planned."""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Timeline:
    """What is going to happen. Seconds; starts at zero."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._planned: list[tuple[float, int, Action]] = []

    def at(self, time_s: float, action: Action) -> None:
        """Plan an action; the past counts as now."""
        self._order += 1
        heapq.heappush(self._planned, (max(time_s, self.now), self._order, action))

    def step(self) -> bool:
        """Let the next action happen. False: there is none."""
        if not self._planned:
            return False
        self.now, _, action = heapq.heappop(self._planned)
        action()
        return True
