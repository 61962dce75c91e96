"""How much of the machine others took while something was measured: such figures say little."""

import time
from collections.abc import Sequence

import psutil


class Neighbours:
    """Watches the machine beside some processes, from now on."""

    def __init__(self, own: Sequence[psutil.Process]) -> None:
        self._own = own
        self._begin_s = time.monotonic()
        self._others_s = self._others()

    def share(self) -> float:
        """Return the share of all CPUs' time that went to other processes since the beginning."""
        available_s = (time.monotonic() - self._begin_s) * (psutil.cpu_count() or 1)
        return max(0.0, self._others() - self._others_s) / available_s

    def _others(self) -> float:
        machine = psutil.cpu_times()
        busy_s = sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice
        return busy_s - sum(sum(process.cpu_times()[:2]) for process in self._own)
