"""What the engines' own records say of a run: waits counted in host iterations, and overheads.

A request waits for the host between two of its tokens of which the host makes the later one. In
steady state that is one iteration. A request that has just moved there may have missed the
beginning of one, and then waits for the rest of that and for a whole one.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dualpace.core.iteration_log import Iteration


@dataclass(frozen=True, slots=True)
class HostWait:
    """Between two tokens of one request, the later one made by the host."""

    begin_s: float
    end_s: float
    moved: bool
    """The earlier token is the device's."""
    iterations: int
    """Of the host that ended meanwhile, the one that made the token included."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.begin_s


class HostIterations:
    """The host's iterations of a run, in order."""

    def __init__(self, iterations: Sequence[Iteration]) -> None:
        self._all = iterations
        self._begins = [i.begin_s for i in iterations]
        self._ends = [i.end_s for i in iterations]

    def ended(self, begin_s: float, end_s: float) -> int:
        """How many ended after `begin_s`, and not after `end_s`."""
        return bisect_right(self._ends, end_s) - bisect_right(self._ends, begin_s)

    def overlapping(self, begin_s: float, end_s: float) -> Sequence[Iteration]:
        """Those that ran in an interval, if only in part."""
        return self._all[bisect_right(self._ends, begin_s) : bisect_left(self._begins, end_s)]

    def beyond_two(self, begin_s: float, end_s: float) -> float:
        """Return what an interval lasts beyond the last two iterations that overlap it, or 0.

        For a wait that is what messages took before the first of them began.
        """
        last = self.overlapping(begin_s, end_s)[-2:]
        return max(0.0, end_s - begin_s - sum(i.end_s - i.begin_s for i in last))

    def in_iterations(self, begin_s: float, end_s: float) -> float:
        """Return an interval over the mean length of the iterations that it overlaps."""
        lengths = [i.end_s - i.begin_s for i in self.overlapping(begin_s, end_s)]
        return (end_s - begin_s) / statistics.mean(lengths) if lengths else 0.0


def host_waits(gpu: Iterable[Iteration], host: Sequence[Iteration]) -> list[HostWait]:
    """Return every wait for the host, by the engines' clocks."""
    made: dict[int, list[tuple[float, bool]]] = {}
    for iterations, on_host in ((gpu, False), (host, True)):
        for iteration in iterations:
            for request_id in iteration.requests:
                made.setdefault(request_id, []).append((iteration.end_s, on_host))
    table = HostIterations(host)
    return [
        HostWait(begin_s, end_s, not was_host, table.ended(begin_s, end_s))
        for tokens in made.values()
        for (begin_s, was_host), (end_s, is_host) in pairwise(sorted(tokens))
        if is_host
    ]


def over_predicted(
    iterations: Sequence[Iteration],
    predict: Callable[[Iteration], float],
    *,
    idle_s: float = 0.01,
) -> float | None:
    """Return the time of successive iterations over their predictions, all together.

    An iteration lasts until the next one begins, unless that is more than `idle_s` after its end.
    """
    taken = [
        (b.begin_s if b.begin_s - a.end_s < idle_s else a.end_s) - a.begin_s
        for a, b in pairwise(iterations)
    ]
    expected = sum(predict(i) for i in iterations[:-1])
    return sum(taken) / expected if expected else None
