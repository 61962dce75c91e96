"""Service processes under a supervisor: started apart from the terminal, stopped in order."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Child:
    """A running service."""

    name: str
    process: subprocess.Popen[bytes]

    @property
    def exit_status(self) -> int | None:
        """How it ended; None while it runs."""
        return self.process.poll()

    def ask_to_stop(self) -> None:
        """Send SIGTERM; a process that was stopped is woken, so that it can follow."""
        if self.exit_status is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False if it still runs."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it, whatever it does."""
        if self.exit_status is None:
            self.process.kill()
            self.process.wait()


class Lifeline:
    """A pipe whose writing end only its maker has.

    Its closing tells every child that it died.
    """

    def __init__(self) -> None:
        self.read_fd, write_fd = os.pipe()
        self._open = [self.read_fd, write_fd]

    def close(self) -> None:
        """Let go of both ends."""
        while self._open:
            os.close(self._open.pop())


def start_child(
    name: str, module: str, flags: Sequence[str], *, inherited_fds: Sequence[int]
) -> Child:
    """Start `python -m module flags` in a session of its own.

    Ctrl-C reaches the supervisor alone.
    """
    process = subprocess.Popen(  # noqa: S603 - our own modules, no shell
        [sys.executable, "-m", module, *flags],
        stdin=subprocess.DEVNULL,
        pass_fds=tuple(inherited_fds),
        start_new_session=True,
    )
    return Child(name, process)


def stop_in_order(groups: Sequence[tuple[Sequence[Child], float]], *, hurry: "Hurry") -> None:
    """Stop groups of children one after the other, each within its time; then kill what is left."""
    for children, timeout_s in groups:
        for child in children:
            child.ask_to_stop()
        deadline = time.monotonic() + timeout_s
        for child in children:
            while not child.wait(0.1):
                if hurry.requested or time.monotonic() > deadline:
                    child.kill()


@dataclass(slots=True)
class Hurry:
    """Set by a second Ctrl-C: no more waiting."""

    requested: bool = False
