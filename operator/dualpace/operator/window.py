"""When a node that serves may be taken out to be measured again."""

from datetime import datetime, time

from dualpace.operator.model.service import Profiling, Window


def in_window(window: Window, now: datetime) -> bool:
    """Return whether a daily window is open; `end` is outside. `now` is UTC."""
    start, end = (time.fromisoformat(text) for text in (window.start, window.end))
    at = now.time().replace(tzinfo=None)
    return start <= at < end if start < end else at >= start or at < end


def may_reprofile_now(profiling: Profiling, *, requested: bool, now: datetime) -> bool:
    """Return whether the service's policy allows it at this time, as far as time goes."""
    if requested or profiling.reprofile == "Anytime":
        return True
    return (
        profiling.reprofile == "Window"
        and profiling.window is not None
        and in_window(profiling.window, now)
    )
