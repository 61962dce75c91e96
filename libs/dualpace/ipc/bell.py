"""What wakes an engine's loop: a message in its inbox, or a peer that wants something of it.

`LocalBell` is for one process. `SharedBell` is a word of the arena, which a peer rings as well.
"""

import os
import threading
from typing import Protocol

import numpy as np
import numpy.typing as npt

_SPIN_S = 30e-6
"""A little more than a stage takes; longer waits had better sleep."""


def spin_s_for(num_threads: int) -> float:
    """Return how long to spin: not at all where every allowed CPU has compute to do."""
    return _SPIN_S if num_threads < len(os.sched_getaffinity(0)) else 0.0


class Bell(Protocol):
    """Rung from any thread, or process; heard by one loop."""

    def ring(self) -> None:
        """Wake the loop, now or when it next waits."""
        ...

    def listen(self) -> None:
        """Note what has been rung: only what comes later ends the next wait."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return when it was rung since `listen`, or the time is up."""
        ...


class LocalBell:
    """A bell of threads."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        """Wake the loop."""
        self._rung.set()

    def listen(self) -> None:
        """Forget earlier rings."""
        self._rung.clear()

    def wait(self, timeout_s: float) -> None:
        """Wait for a ring."""
        self._rung.wait(timeout_s)


class SharedBell:
    """A bell of processes: a word of shared memory, int32 [1]."""

    def __init__(self, word: npt.NDArray[np.int32], *, spin_s: float = 0.0) -> None:
        # Not above: the gateway imports this module, and its image has no native kernels.
        from dualpace.kernels import load, ring, wait_changed  # noqa: PLC0415

        self._load, self._ring, self._wait_changed = load, ring, wait_changed
        self._word = word
        self._spin_ns = int(spin_s * 1e9)
        self._heard = load(word, 0)

    def ring(self) -> None:
        """Wake the loop."""
        self._ring(self._word, 0)

    def listen(self) -> None:
        """Note the count so far."""
        self._heard = self._load(self._word, 0)

    def wait(self, timeout_s: float) -> None:
        """Spin for a moment, then sleep, until the count changes."""
        self._wait_changed(
            self._word, 0, self._heard, spin_ns=self._spin_ns, timeout_ns=int(timeout_s * 1e9)
        )
