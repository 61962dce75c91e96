"""A sign of life in shared memory: readable when its writer hangs, is stopped, or is gone."""

import os

import numpy as np
import numpy.typing as npt


class Heartbeat:
    """One engine's record: who, when last, how many iterations, and whether it has work."""

    def __init__(self, record: npt.NDArray[np.void]) -> None:
        self._record = record

    def start(self, now_s: float) -> None:
        """Enter this process."""
        self._record["pid"] = os.getpid()
        self._record["steps"] = 0
        self._record["started_ns"] = int(now_s * 1e9)
        self.beat(now_s, busy=False)

    def beat(self, now_s: float, *, busy: bool, steps: int = 0) -> None:
        """Say that the engine's loop came by, and whether it has work."""
        self._record["steps"] = steps
        self._record["busy"] = busy
        self._record["beat_ns"] = int(now_s * 1e9)

    def age_s(self, now_s: float) -> float | None:
        """Seconds since the last beat; None before the first."""
        beat = int(self._record["beat_ns"][0])
        return now_s - beat / 1e9 if beat else None

    @property
    def steps(self) -> int:
        """Iterations since the engine started."""
        return int(self._record["steps"][0])

    @property
    def busy(self) -> bool:
        """Whether the engine had work at its last beat."""
        return bool(self._record["busy"][0])

    @property
    def started_s(self) -> float:
        """When the engine entered itself; 0 before that."""
        return int(self._record["started_ns"][0]) / 1e9

    @property
    def pid(self) -> int:
        """The engine's process id in its own namespace; 0 before the first beat."""
        return int(self._record["pid"][0])
