"""What every service process does alike: stop on request, notice a dead supervisor, say why."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from dualpace.core.errors import DualPaceError, SettingsError, StoppedError

log = logging.getLogger(__name__)

EXIT_SETTINGS = 2


class StopRequest:
    """Set once by SIGTERM, SIGINT or a supervisor's death; `on_stop` callbacks wake who waits."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self.reason = ""
        self.urgent = False
        """Whether there is nobody left to wait for: no grace."""

    @property
    def requested(self) -> bool:
        """Whether the process is to stop."""
        return self._event.is_set()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call back when a stop is requested, from any thread; at once if it has been.

        A request that comes just now may call back twice.
        """
        self._callbacks.append(callback)
        if self.requested:
            callback()

    def request(self, reason: str, *, urgent: bool = False) -> None:
        """Ask the process to stop."""
        self.reason = self.reason or reason
        self.urgent = self.urgent or urgent
        self._event.set()
        for callback in list(self._callbacks):
            callback()

    def check(self) -> None:
        """Raise StoppedError if the process is to stop; for long steps of a start."""
        if self.requested:
            raise StoppedError(f"stopped while starting: {self.reason}")

    def install_signals(self) -> None:
        """Let SIGTERM and SIGINT ask for a stop. Main thread only.

        A handler runs in the midst of whatever the main thread does, perhaps with a lock held that
        a callback wants. So the handlers do nothing, and a thread acts on what the signals write.
        """
        read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(read_fd, True)
        signal.set_wakeup_fd(write_fd)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

        def watch() -> None:
            while numbers := os.read(read_fd, 4096):
                for number in numbers:
                    self.request(signal.Signals(number).name)

        threading.Thread(target=watch, name="signals", daemon=True).start()

    def watch_lifeline(self, fd: int) -> None:
        """Stop at once when the other end of a pipe closes, however its holder died."""
        watch_lifeline(fd, lambda: self.request("the supervisor is gone", urgent=True))


def watch_lifeline(fd: int, closed: Callable[[], None]) -> None:
    """Call `closed`, in a thread of its own, once the other end of a pipe has closed."""

    def watch() -> None:
        while os.read(fd, 4096):
            pass
        closed()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def run_service(service: str, work: Callable[[], None], termination_log: str | None = None) -> int:
    """Run a service to its end and return its exit status; the last log line says why it ended.

    0: as asked. 1: a failure. 2: bad settings. The reason of a failure also goes to the file
    `termination_log`, if there is one.
    """
    try:
        work()
    except StoppedError as stopped:
        log.info("%s %s", service, stopped)
        return 0
    except DualPaceError as error:
        reason, status = str(error), EXIT_SETTINGS if isinstance(error, SettingsError) else 1
    except Exception as error:
        log.exception("%s failed", service)
        reason, status = f"unexpected {type(error).__name__}: {error}", 1
    else:
        return 0
    if termination_log is not None:
        with contextlib.suppress(OSError):
            Path(termination_log).write_text(reason + "\n", encoding="utf-8")
    log.critical("%s stops: %s", service, reason)
    return status
