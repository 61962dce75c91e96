"""Progress of long steps as log lines, neither silent nor a flood."""

import logging
import time
from collections.abc import Callable

_INTERVAL_S = 2.0


def log_progress(
    log: logging.Logger, what: str, check: Callable[[], None] = lambda: None
) -> Callable[[float], None]:
    """Return a callback for fractions done, 0..1: logs at most every two seconds, and the end."""
    started = time.monotonic()
    next_line = started + _INTERVAL_S

    def progress(done: float) -> None:
        nonlocal next_line
        check()
        now = time.monotonic()
        if done >= 1.0:
            log.info("%s: done in %.1f s", what, now - started)
        elif now >= next_line:
            next_line = now + _INTERVAL_S
            log.info("%s: %.0f %%", what, 100 * done)

    return progress
