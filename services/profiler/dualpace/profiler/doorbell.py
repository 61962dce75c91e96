"""What an assist call costs when nothing is in it: two processes, over a channel that serves.

The other process (`python -m dualpace.profiler.doorbell FD`) answers in the device's role until it
is told to stop, or its parent is gone.
"""

import mmap
import os
import subprocess
import sys
import time
from types import TracebackType

import numpy as np

from dualpace.core.errors import ProfileError
from dualpace.ipc.assist_channel import AssistChannel
from dualpace.ipc.assist_layout import STATUS_DONE, AssistGeometry, assist_layout
from dualpace.ipc.bell import SharedBell

_GEOMETRY = AssistGeometry(rows=1, num_heads=1, num_kv_heads=1, head_dim=16, itemsize=4)
_READY = 1 << 19
_STOP = 1 << 20
_CALLS = 20
"""Of one sample."""
_START_S = 30.0
_ANSWER_S = 10.0


class Doorbell:
    """A channel with somebody behind it. A context."""

    def __init__(self, *, host_spin_s: float, device_spin_s: float) -> None:
        size = assist_layout(_GEOMETRY).num_bytes
        self._fd = os.memfd_create("doorbell")
        os.ftruncate(self._fd, size)
        self._channel, _ = _map(self._fd, device_spin_s)
        self._spin_s = host_spin_s
        self._child = subprocess.Popen(  # noqa: S603 - our own command, no shell
            [sys.executable, "-m", "dualpace.profiler.doorbell", str(self._fd), str(device_spin_s)],
            pass_fds=(self._fd,),
        )

    def one_way_ms(self) -> float:
        """Return the mean of one direction over some empty calls there and back."""
        begin = time.perf_counter()
        for _ in range(_CALLS):
            self._call(1, _ANSWER_S)
        return (time.perf_counter() - begin) * 1e3 / _CALLS / 2

    def __enter__(self) -> "Doorbell":
        try:
            self._call(_READY, _START_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _call(self, boundary: int, timeout_s: float) -> None:
        self._channel.call(boundary, 0)
        if not self._channel.wait(timeout_s, spin_s=self._spin_s):
            raise ProfileError("the process that answers assist calls fell silent")

    def _end(self) -> None:
        if self._channel.free:
            self._channel.call(_STOP, 0)
        else:
            self._child.terminate()
        try:
            self._child.wait(_ANSWER_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        os.close(self._fd)


def _map(fd: int, device_spin_s: float) -> tuple[AssistChannel, SharedBell]:
    layout = assist_layout(_GEOMETRY)
    data = np.frombuffer(mmap.mmap(fd, layout.num_bytes), np.uint8)
    bell = SharedBell(data[layout.bells :][:4].view("<i4"), spin_s=device_spin_s)
    return AssistChannel(data, layout.channels[0], _GEOMETRY, bell), bell


def _answer(fd: int, device_spin_s: float) -> None:
    parent = os.getppid()
    channel, bell = _map(fd, device_spin_s)
    while os.getppid() == parent:
        bell.listen()
        if not channel.waiting:
            bell.wait(1.0)
            continue
        if channel.boundary == _STOP:
            return
        channel.answer(STATUS_DONE, 0.0)


if __name__ == "__main__":
    _answer(int(sys.argv[1]), float(sys.argv[2]))
