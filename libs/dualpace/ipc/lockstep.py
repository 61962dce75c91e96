"""Makes two engines keep step, as systems do in which the host fills gaps of the device's schedule.

For measurements of what that costs. A host iteration starts with a device iteration, if the device
has any, and the device's next one waits for it to end. Waits are bounded: a peer that died holds
nobody up for long.
"""

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dualpace.core.request import Engine
from dualpace.ipc.heartbeat import Heartbeat
from dualpace.kernels import load, publish, wait_changed

_FILE_NAME = "lockstep"
_BYTES = 4096
_LINE = 16  # words of a cache line
_DEVICE_STARTED, _HOST_STARTED, _HOST_ENDED = 0, _LINE, 2 * _LINE
_PATIENCE_S = 2.0
_LOOK_AGAIN_S = 0.002


class Lockstep:
    """One engine's side. The file lies beside the arena; whoever comes first makes it."""

    def __init__(self, run_dir: Path, engine: Engine, peer: Heartbeat) -> None:
        fd = os.open(run_dir / _FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            os.ftruncate(fd, _BYTES)
            memory = mmap.mmap(fd, _BYTES)
        finally:
            os.close(fd)
        self._words: npt.NDArray[np.int32] = np.frombuffer(memory, np.int32)
        self._engine = engine
        self._peer = peer
        self._seen = load(self._words, _DEVICE_STARTED)

    def begin(self) -> None:
        """Wait for this engine's turn; call it before an iteration."""
        if self._engine is Engine.GPU:
            running = load(self._words, _HOST_STARTED)
            ended = load(self._words, _HOST_ENDED)
            if running != ended:
                self._wait(_HOST_ENDED, ended, _PATIENCE_S)
            publish(self._words, _DEVICE_STARTED, load(self._words, _DEVICE_STARTED) + 1)
            return
        left_s = _PATIENCE_S
        while self._peer.busy and load(self._words, _DEVICE_STARTED) == self._seen and left_s > 0:
            self._wait(_DEVICE_STARTED, self._seen, _LOOK_AGAIN_S)
            left_s -= _LOOK_AGAIN_S
        self._seen = load(self._words, _DEVICE_STARTED)
        publish(self._words, _HOST_STARTED, load(self._words, _HOST_STARTED) + 1)

    def end(self) -> None:
        """Say that the iteration is over."""
        if self._engine is Engine.CPU:
            publish(self._words, _HOST_ENDED, load(self._words, _HOST_STARTED))

    def _wait(self, word: int, seen: int, timeout_s: float) -> None:
        wait_changed(self._words, word, seen, spin_ns=0, timeout_ns=int(timeout_s * 1e9))
