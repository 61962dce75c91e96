"""The host's iteration under way: whom it computes, who may still join, what waits for its end.

It knows request ids, not sequences.
"""

import enum
from collections.abc import Iterable

MOST_NEWCOMERS = 8
"""That join one iteration: few enough that what they repeat takes the time of reading weights."""
_MOST_REPEATED = 1.0 / 3.0
"""Of an iteration's layers, for those who join it. One that comes later than so waits for less than
the rest of it and a whole one; those who joined have cost the others less than half of one."""
_MOST_FOR_THE_OVERDUE = 2.0 / 3.0
"""The same for one that has waited since the iteration began: it would wait for two."""


class Late(enum.Enum):
    """What may happen to a sequence that is being computed, once its result is there, in order."""

    CANCEL = enum.auto()
    RECALL = enum.auto()
    DISOWN = enum.auto()


class HostIteration:
    """Between `begin` and `end`; outside of that it computes nobody."""

    def __init__(self) -> None:
        self._computing: set[int] = set()
        self._repeated = 0.0
        """Which share of the layers was computed again for those who joined."""
        self._newcomers = 0
        self._put_off: dict[Late, list[int]] = {}

    def begin(self, request_ids: Iterable[int]) -> None:
        """Compute these."""
        self._computing = set(request_ids)
        self._repeated, self._newcomers = 0.0, 0

    def computes(self, request_id: int) -> bool:
        """Whether a request's result is still to come, and its blocks are being written."""
        return request_id in self._computing

    def room(self, behind: float, max_batch: int, *, overdue: bool = False) -> int:
        """How many may join that lack a share `behind` of the layers.

        `overdue`: of those who have waited since the iteration began.
        """
        most = _MOST_FOR_THE_OVERDUE if overdue else _MOST_REPEATED
        if not self._computing or self._repeated + behind > most:
            return 0
        return min(max_batch - len(self._computing), MOST_NEWCOMERS - self._newcomers)

    def join(self, request_ids: Iterable[int], behind: float) -> None:
        """Compute these too, once they have caught up; there must be room."""
        before = len(self._computing)
        self._computing.update(request_ids)
        self._newcomers += len(self._computing) - before
        self._repeated += behind

    def put_off(self, what: Late, request_id: int) -> bool:
        """Keep what is to happen to a request until the end; False if that may be now."""
        if request_id not in self._computing:
            return False
        self._put_off.setdefault(what, []).append(request_id)
        return True

    def forget(self, what: Late) -> None:
        """Let it not happen to anybody."""
        self._put_off.pop(what, None)

    def end(self) -> list[tuple[Late, int]]:
        """Compute nobody; returns what has been put off."""
        put_off, self._put_off = self._put_off, {}
        self._computing = set()
        return [(what, request_id) for what in Late for request_id in put_off.get(what, ())]

    def check_integrity(self, running: Iterable[int]) -> None:
        """Assert that it computes sequences that advance, and holds up only what concerns them."""
        assert self._computing.issubset(running)
        assert all(self._computing.issuperset(ids) for ids in self._put_off.values())
