"""How long work takes where other work may be on the machine."""

import time
from collections.abc import Callable

_REPEATS = 5


def least_seconds(work: Callable[[], object]) -> float:
    """Return the shortest of five times: others can only make it take longer."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
