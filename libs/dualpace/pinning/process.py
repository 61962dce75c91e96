"""Pins the threads of this process, looks whether it took, and says so. Main thread, at start.

Nothing here fails a start: where the system refuses, threads run where it lets them, with a
warning, and the gauges tell what was asked and what was got.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from dualpace.pinning.cpulist import format_cpulist
from dualpace.pinning.pins import Pins, pins_from_text
from dualpace.pinning.sysfs import read_topology
from dualpace.pinning.topology import Topology

log = logging.getLogger(__name__)

_TASKS = Path("/proc/self/task")
_LOOK_AGAIN_S = 10.0


class ProcessPinning:
    """The pins of this process. Without any it does nothing, and reports what is allowed."""

    def __init__(self, pins: Pins | None, allowed: tuple[int, ...]) -> None:
        self.pins = pins
        self._allowed = allowed
        self._refused: set[str] = set()
        self._astray = 0
        self._got = 0
        self._looked_s = float("-inf")

    def start(self) -> None:
        """Put every thread there is, and so those that they will start, on the compute CPUs."""
        if self.pins is not None:
            for thread in _threads():
                self._pin(thread, self.pins.compute)

    def settle(self) -> None:
        """Move Python's threads, but for the calling one, to the helpers' CPUs; look, and log.

        To be called when they exist and before they start threads of their own.
        """
        if self.pins is None:
            log.info("threads are not pinned; CPUs %s are allowed", format_cpulist(self._allowed))
            return
        main = threading.get_native_id()
        for thread in threading.enumerate():
            if thread.native_id is not None and thread.native_id != main:
                self._pin(thread.native_id, self.pins.helpers)
        astray = self.astray()
        asked, got = self.pins.compute, os.sched_getaffinity(0)
        if astray or set(asked) != got:
            log.warning(
                "pinning: asked for %s; the main thread got %s, %d threads are elsewhere%s",
                self.pins,
                format_cpulist(got),
                len(astray),
                "".join(f"; {reason}" for reason in sorted(self._refused)),
            )
        else:
            log.info("pinned: %s; asked and got", self.pins)

    def astray(self) -> dict[int, tuple[int, ...]]:
        """Return the CPUs of each thread, by id, that may leave compute's and helpers' CPUs.

        Each is within one of them; compute threads may be tied to single CPUs of theirs.
        """
        if self.pins is None:
            return {}
        compute, helpers = set(self.pins.compute), set(self.pins.helpers)
        found = ((thread, _affinity(thread)) for thread in _threads())
        return {
            t: tuple(sorted(cpus)) for t, cpus in found if not (cpus <= compute or cpus <= helpers)
        }

    def gauges(self) -> dict[str, float]:
        """Return numbers for metrics: CPUs asked for and got, and threads that are elsewhere."""
        now = time.monotonic()
        if now >= self._looked_s + _LOOK_AGAIN_S:
            self._looked_s, self._astray, self._got = now, len(self.astray()), self._compute_got()
        return {
            "pinned_cpus_asked": float(len(self.pins.compute)) if self.pins else 0.0,
            "pinned_cpus_got": float(self._got),
            "pinned_threads_astray": float(self._astray),
        }

    def _compute_got(self) -> int:
        """Return on how many of the compute CPUs some thread may run that is not astray."""
        if self.pins is None:
            return 0
        compute = set(self.pins.compute)
        masks = (_affinity(thread) for thread in _threads())
        return len(set().union(*(mask for mask in masks if mask <= compute)))

    def _pin(self, thread: int, cpus: Iterable[int]) -> None:
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            pass  # it has ended
        except OSError as error:
            self._refused.add(f"CPUs {format_cpulist(cpus)} were refused: {error.strerror}")


_current = ProcessPinning(None, ())


def pin_process(text: str, topology: Topology | None = None) -> ProcessPinning:
    """Pin this process as a setting says. Raises SettingsError if the setting is wrong.

    topology: None: this machine's.
    """
    global _current  # noqa: PLW0603 - affinity is the process's too
    topology = topology or read_topology()
    pinning = ProcessPinning(pins_from_text(text, topology), topology.cpus)
    pinning.start()
    _current = pinning
    return pinning


def settle_pins() -> None:
    """Do what `ProcessPinning.settle` does, for this process."""
    _current.settle()


def pinning_gauges() -> dict[str, float]:
    """Return the gauges of this process."""
    return _current.gauges()


def _threads() -> list[int]:
    return [int(path.name) for path in _TASKS.iterdir()]


def _affinity(thread: int) -> set[int]:
    """Return a thread's CPUs; empty: it has ended."""
    try:
        return os.sched_getaffinity(thread)
    except OSError:
        return set()
