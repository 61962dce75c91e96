"""A node as a user starts it: `dualpace serve` in a process of its own, reached over HTTP."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import httpx2
import psutil
from prometheus_client.parser import text_string_to_metric_families

from dualpace.cli.children import Lifeline

_NOTHING: Mapping[str, str] = MappingProxyType({})
_START_S = 120.0
_STOP_S = 60.0


class ServedNode:
    """A running node. `log` is what the supervisor and its services have printed so far."""

    def __init__(
        self,
        model: str,
        flags: tuple[str, ...],
        shm_dir: Path,
        env: Mapping[str, str] = _NOTHING,
    ) -> None:
        _heed_interrupts()
        self._lifeline = Lifeline()
        lifeline_fd = self._lifeline.read_fd
        command = [sys.executable, "-m", "dualpace.cli", "serve", f"--model={model}"]
        self.process = subprocess.Popen(  # noqa: S603 - our own command, no shell
            [*command, "--port=0", f"--shm-dir={shm_dir}", f"--lifeline-fd={lifeline_fd}", *flags],
            pass_fds=(lifeline_fd,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **env},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""

    def wait_until_ready(self) -> None:
        """Return once the node serves; an AssertionError shows the log if it does not."""
        wait_for(self._serving_or_dead, _START_S, lambda: self.log)
        assert self.process.poll() is None, self.log

    @property
    def log(self) -> str:
        """Everything printed so far."""
        return "\n".join(self.lines)

    def services(self) -> dict[str, psutil.Process]:
        """The node's service processes, by name: gateway, gpu-engine, cpu-engine."""
        found: dict[str, psutil.Process] = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                command = " ".join(child.cmdline())
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue  # it just died
            if match := re.search(r"dualpace\.(gateway|gpu_engine|cpu_engine)", command):
                found[match[1].replace("_", "-")] = child
        return found

    def gauges(self) -> dict[tuple[str, str], float]:
        """Return what the engines report, by (engine, name), from /metrics."""
        text = httpx2.get(f"{self.url}/metrics", timeout=10).text
        gauges: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith("dualpace_engine_"):
                    name = sample.name.removeprefix("dualpace_engine_")
                    gauges[sample.labels["engine"], name] = sample.value
        return gauges

    def assert_idle(self) -> None:
        """Assert that soon every block, slot and sequence of both engines is free."""
        wait_for(lambda: not self._held(), 20.0, lambda: f"still held: {self._held()}")

    def stop(self, number: int = signal.SIGINT) -> int:
        """Stop the node as Ctrl-C does, and return its exit status."""
        self.process.send_signal(number)
        return self._ended()

    def let_go(self) -> int:
        """Let the node stop as if whoever started it had died, and return its exit status."""
        self._lifeline.close()
        return self._ended()

    def _ended(self) -> int:
        status = self.process.wait(_STOP_S)
        self._lifeline.close()
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def _held(self) -> dict[str, float]:
        gauges = self.gauges()
        if absent := [e for e in ("gpu", "cpu") if (e, "sequences") not in gauges]:
            return dict.fromkeys(absent, 1.0)  # an engine that is not there has not said so
        held = {
            f"{engine} {name}": gauges[engine, name]
            for engine in ("gpu", "cpu")
            for name in ("sequences", "running")
        }
        for engine in ("gpu", "cpu"):
            for kind in ("blocks", "slots"):
                missing = gauges[engine, f"total_{kind}"] - gauges[engine, f"free_{kind}"]
                held[f"{engine} {kind}"] = missing
        return {name: value for name, value in held.items() if value}

    def _serving_or_dead(self) -> bool:
        match = re.search(r"serving at (http://\S+)/v1", self.log)
        if match:
            self.url = match[1]
        return bool(match) or self.process.poll() is not None

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):  # a test closed it
            for line in self.process.stdout:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))


def _heed_interrupts() -> None:
    """Let nodes heed Ctrl-C: a shell has its background jobs ignore it, and they inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_for(condition: Callable[[], bool], timeout_s: float, tell: Callable[[], str]) -> None:
    """Wait until a condition holds; an AssertionError says what `tell` returns."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.05)


@contextlib.contextmanager
def served_node(
    model: Path | str,
    *flags: str,
    shm_dir: Path = Path("/dev/shm"),  # noqa: S108
    env: Mapping[str, str] = _NOTHING,
) -> Iterator[ServedNode]:
    """Serve a model for as long as the context lasts; at the end the node must stop cleanly.

    `env` adds to this process's variables.
    """
    node = ServedNode(str(model), flags, shm_dir, env)
    try:
        node.wait_until_ready()
        yield node
        assert node.stop() == 0, node.log
    finally:
        if node.process.poll() is None:
            for process in (*node.services().values(), psutil.Process(node.process.pid)):
                os.kill(process.pid, signal.SIGKILL)
            node.process.wait()
        if node.process.stdout is not None:
            node.process.stdout.close()
