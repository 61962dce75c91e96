"""The three services as a pod runs them: apart, each started again when it ends."""

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2

from dualpace.cli.services import MODULES
from dualpace.core.sockets import listen_tcp
from dualpace.testing.served_node import wait_for

_READY_S = 60.0
_RESTART_DELAY_S = 0.1


class Container:
    """One service under a kubelet's policy `Always`."""

    def __init__(self, service: str, flags: tuple[str, ...]) -> None:
        self.service = service
        self.log: list[str] = []
        self.starts = 0
        self._flags = flags
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """Send SIGKILL to what runs now."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """End it for good."""
        self._stopping.set()
        self.kill()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.starts += 1
            with subprocess.Popen(  # noqa: S603 - our own modules, no shell
                [sys.executable, "-m", MODULES[self.service], *self._flags],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process:
                self._process = process
                if self._stopping.is_set():
                    process.kill()
                assert process.stdout is not None
                self.log.extend(line.rstrip("\n") for line in process.stdout)
            self._stopping.wait(_RESTART_DELAY_S)


class Pod:
    """A node's containers, by name of service; the gateway listens on `url`."""

    def __init__(self, run_dir: Path, model: Path, gpu_flags: tuple[str, ...]) -> None:
        with listen_tcp("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        common = (f"--model={model}", f"--run-dir={run_dir}")
        self.containers = {
            "gpu-engine": Container("gpu-engine", (*common, *gpu_flags)),
            "cpu-engine": Container("cpu-engine", common),
            "gateway": Container("gateway", (*common, f"--port={port}")),
        }

    @property
    def log(self) -> str:
        """Everything that was printed, by service."""
        return "\n".join(line for c in self.containers.values() for line in c.log)

    def ready(self) -> bool:
        """Whether the gateway takes requests."""
        try:
            return httpx2.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    def wait_until_ready(self) -> None:
        """Return once requests are taken."""
        wait_for(self.ready, _READY_S, lambda: self.log)


@contextlib.contextmanager
def running_pod(model: Path, *gpu_flags: str) -> Iterator[Pod]:
    """Run a pod for as long as the context lasts."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dualpace-pod-") as run_dir:
        pod = Pod(Path(run_dir), model, gpu_flags)
        try:
            yield pod
        finally:
            for container in pod.containers.values():
                container.stop()
