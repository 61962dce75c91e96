"""`dualpace serve`: starts the three services, says when they serve, and stops them in order.

The services are the entry points that containers run. This knows their flags, not their insides.
"""

import http.client
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from dualpace.checkpoint import resolve_model
from dualpace.cli.children import Child, Hurry, Lifeline, start_child, stop_in_order
from dualpace.cli.run_directory import RunDirectory
from dualpace.cli.settings import ServeSettings
from dualpace.core.errors import DualPaceError, SettingsError
from dualpace.core.settings import parse_settings

_ENGINE_STOP_S = 15.0
_POLL_S = 0.1


def serve_command(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C, SIGTERM, or the end of a service. Returns the exit status."""
    try:
        settings = parse_settings(
            ServeSettings, argv, os.environ, program="dualpace serve", prefix="DUALPACE_SERVE_"
        )
        with _listen(settings) as listener:
            model = resolve_model(settings.model, progress=_say)
            with RunDirectory(Path(settings.shm_dir)) as run_directory:
                for path in run_directory.reclaimed:
                    _say(f"removed {path}, left behind by a node that was killed")
                return _Node(settings, listener, model, run_directory.path).run()
    except DualPaceError as error:
        print(f"dualpace serve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _say(line: str) -> None:
    print(line, flush=True)


def _listen(settings: ServeSettings) -> socket.socket:
    """Take the port before anything slow happens; clients that come early wait."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        where = f"{settings.host} port {settings.port}"
        raise SettingsError(f"cannot listen on {where}: {error.strerror}") from error
    return listener


class _Node:
    """One gateway and two engines."""

    def __init__(
        self, settings: ServeSettings, listener: socket.socket, model: Path, run_dir: Path
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._model = model
        self._run_dir = run_dir
        self._stop_signals = 0
        self._hurry = Hurry()
        host, port = listener.getsockname()[:2]
        self._address = (host, port)

    def run(self) -> int:
        """Start, watch, stop."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        lifeline = Lifeline()
        engines: list[Child] = []
        gateway: Child | None = None
        try:
            _say(f"DualPace {version('dualpace')}: loading {self._model.name}")
            engines = self._start_engines(lifeline)
            gateway = self._start_gateway(lifeline)
            return self._watch([*engines, gateway])
        finally:
            front = [gateway] if gateway else []
            grace = self._settings.drain_grace_s + 5.0
            stop_in_order([(front, grace), (engines, _ENGINE_STOP_S)], hurry=self._hurry)
            lifeline.close()

    def _start_engines(self, lifeline: Lifeline) -> list[Child]:
        settings = self._settings
        gpu_threads, cpu_threads = _thread_split(settings.device)
        common = [
            f"--model={self._model}",
            f"--run-dir={self._run_dir}",
            f"--dtype={_dtype(settings)}",
            f"--lifeline-fd={lifeline.read_fd}",
            f"--log-level={settings.log_level}",
            f"--log-json={settings.log_json}",
        ]
        gpu = [
            f"--device={settings.device}",
            f"--placement={settings.placement}",
            f"--device-kv-mib={settings.device_kv_mib}",
            f"--arena-mib={settings.arena_mib}",
            f"--host-slots={settings.host_slots}",
            f"--max-running={settings.max_running}",
            f"--token-budget={settings.token_budget}",
            f"--threads={gpu_threads}",
        ]
        if settings.max_model_len is not None:
            gpu.append(f"--max-model-len={settings.max_model_len}")
        cpu = [f"--threads={cpu_threads}"]
        fds = [lifeline.read_fd]
        return [
            start_child("gpu-engine", "dualpace.gpu_engine", common + gpu, inherited_fds=fds),
            start_child("cpu-engine", "dualpace.cpu_engine", common + cpu, inherited_fds=fds),
        ]

    def _start_gateway(self, lifeline: Lifeline) -> Child:
        settings = self._settings
        flags = [
            f"--model={self._model}",
            f"--run-dir={self._run_dir}",
            f"--listen-fd={self._listener.fileno()}",
            f"--lifeline-fd={lifeline.read_fd}",
            f"--drain-grace-s={settings.drain_grace_s}",
            f"--log-level={settings.log_level}",
            f"--log-json={settings.log_json}",
        ]
        names = settings.served_model_name
        if names is not None:
            flags.append(f"--served-model-name={names}")
        fds = [lifeline.read_fd, self._listener.fileno()]
        child = start_child("gateway", "dualpace.gateway", flags, inherited_fds=fds)
        self._listener.close()  # from here on a dead gateway means a closed port
        return child

    def _watch(self, children: Sequence[Child]) -> int:
        """Wait for readiness, then for a reason to stop."""
        ready = False
        while not self._stop_signals:
            for child in children:
                if child.exit_status is not None:
                    status = child.exit_status
                    _say(f"{child.name} ended (status {status}); its last log line says why")
                    return 1
            if not ready and self._is_ready():
                ready = True
                self._announce()
            time.sleep(_POLL_S)
        _say("stopping (Ctrl-C again to stop at once)")
        return 0

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(*self._reachable(), timeout=1.0)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()

    def _announce(self) -> None:
        host, port = self._reachable()
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        _say(f"\nserving at {url}/v1 — stop with Ctrl-C; try:\n")
        _say(
            f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '"
            '{"messages": [{"role": "user", "content": "What is the capital of France?"}],'
            ' "stream": true, "temperature": 0}\'\n'
        )

    def _reachable(self) -> tuple[str, int]:
        """An address that a client on this machine can use."""
        host, port = self._address
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port  # noqa: S104

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        self._stop_signals += 1
        self._hurry.requested = self._stop_signals > 1


def _dtype(settings: ServeSettings) -> str:
    """Say what `auto` means where that is known, so that both engines can load at once."""
    return "float32" if settings.dtype == "auto" and settings.device == "cpu" else settings.dtype


def _thread_split(device: str) -> tuple[int, int]:
    """Compute threads of gpu-engine and cpu-engine.

    Halves on a CPU, else all but two to the host.
    """
    cpus = len(os.sched_getaffinity(0))
    if device == "cpu":
        gpu = max(1, cpus // 2)
        return gpu, max(1, cpus - gpu)
    return 1, max(1, cpus - 2)
