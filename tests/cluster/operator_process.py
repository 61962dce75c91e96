"""The operator as a process, with the chart's service account and nothing more."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from tests.cluster.control_plane import ControlPlane

FLAGS = (
    "--gateway-image=r/gateway:1",
    "--gpu-engine-image=r/gpu-engine:1",
    "--cpu-engine-image=r/cpu-engine:1",
    "--profiler-image=r/profiler:1",
    "--health-port=0",
)


class OperatorProcess:
    """Started at once; `kill` is SIGKILL."""

    def __init__(self, plane: ControlPlane, log: Path, *flags: str) -> None:
        self._log: IO[bytes] = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dualpace.operator", *FLAGS, *flags],
            env={**os.environ, "KUBECONFIG": str(plane.operator_kubeconfig)},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self._log.close()
