"""`dualpace serve`: starts the three services, says when they serve, and stops them in order.

An engine that dies is started again, a bounded number of times: the gateway keeps its requests.
The services are the entry points that run in a node's containers too. This knows their flags, not
their insides.
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
from dualpace.cli.cores import core_plan
from dualpace.cli.restarts import WINDOW_S, Restarts
from dualpace.cli.run_directory import RunDirectory
from dualpace.cli.services import MODULES, check_environment, service_flags, termination_log
from dualpace.cli.settings import ServeSettings
from dualpace.core.errors import DualPaceError
from dualpace.core.process import EXIT_SETTINGS, watch_lifeline
from dualpace.core.settings import parse_settings
from dualpace.core.sockets import listen_tcp

_ENGINE_STOP_S = 15.0
_GATEWAY_MARGIN_S = 5.0
_POLL_S = 0.1


def serve_command(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C, SIGTERM, or the end of a service. Returns the exit status."""
    try:
        check_environment(os.environ)
        settings = parse_settings(
            ServeSettings, argv, os.environ, program="dualpace serve", prefix="DUALPACE_SERVE_"
        )
        # The port first, before anything slow happens; clients that come early wait.
        with listen_tcp(settings.host, settings.port) as listener:
            if (plan := core_plan(settings)) is not None:
                _say(f"cores: {plan}")
                for warning in plan.warnings:
                    _say(f"cores: {warning}")
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
    """Tell a person, if one still reads: serving does not depend on it."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # What is buffered would fail again as the process ends, and change its exit status.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


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
        self._lifeline = Lifeline()
        self._children: dict[str, Child] = {}
        self._restarts = {name: Restarts(settings.max_restarts) for name in MODULES}
        self._due_s: dict[str, float] = {}
        """When to start again what died."""
        self._ready = False

    def run(self) -> int:
        """Start, watch, stop; the last line says why, if it was not asked for."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
                signal.signal(number, self._on_signal)
        if self._settings.lifeline_fd is not None:
            pid = os.getpid()
            watch_lifeline(self._settings.lifeline_fd, lambda: os.kill(pid, signal.SIGTERM))
        try:
            _say(f"DualPace {version('dualpace')}: loading {self._model.name}")
            for service in MODULES:
                self._start(service)
            self._listener.close()  # from here on a dead gateway means a closed port
            dead = self._watch()
        finally:
            self._stop()
            self._lifeline.close()
        if dead is None:
            return 0
        why = f"the {dead.name} ended: {self._reason(dead)}"
        if count := self._restarts[dead.name].count:
            why += f"; it had been started again {count} times within {WINDOW_S:g} s"
        print(f"dualpace serve: {why}", file=sys.stderr)
        return 1

    def _start(self, service: str) -> None:
        fds = {"lifeline_fd": self._lifeline.read_fd}
        if service == "gateway":
            fds["listen_fd"] = self._listener.fileno()
        flags = service_flags(
            service,
            self._settings,
            model=self._model,
            run_dir=self._run_dir,
            fds=fds,
            environ=os.environ,
        )
        termination_log(service, self._run_dir).unlink(missing_ok=True)
        self._children[service] = start_child(
            service, MODULES[service], flags, inherited_fds=list(fds.values())
        )

    def _watch(self) -> Child | None:
        """Keep engines running until there is a reason to stop: a child, or None if asked to."""
        while not self._stop_signals:
            for child in list(self._children.values()):
                if child.exit_status is not None and child.name not in self._due_s:
                    delay_s = self._restart_delay_s(child)
                    if delay_s is None:
                        return child
                    self._due_s[child.name] = time.monotonic() + delay_s
                    _say(f"the {child.name} ended: {self._reason(child)}; it is started again")
            for name in [n for n, due_s in self._due_s.items() if time.monotonic() >= due_s]:
                del self._due_s[name]
                self._start(name)
            if not self._ready and self._is_ready():
                self._ready = True
                self._announce()
            time.sleep(_POLL_S)
        _say("stopping (Ctrl-C again to stop at once)")
        return None

    def _restart_delay_s(self, dead: Child) -> float | None:
        """Return how soon to start a child again; None: the node is to stop."""
        # A start that fails would fail again, and without its gateway a node has lost its clients.
        if dead.name == "gateway" or not self._ready or dead.exit_status == EXIT_SETTINGS:
            return None
        return self._restarts[dead.name].delay_s(time.monotonic())

    def _stop(self) -> None:
        gateway = [child for child in self._children.values() if child.name == "gateway"]
        engines = [child for child in self._children.values() if child.name != "gateway"]
        grace_s = self._settings.drain_grace_s + _GATEWAY_MARGIN_S
        stop_in_order([(gateway, grace_s), (engines, _ENGINE_STOP_S)], hurry=self._hurry)
        if self._hurry.requested:
            _say("stopped at once")

    def _reason(self, child: Child) -> str:
        """Return why a child died, as it says itself, or as its exit status says."""
        try:
            return termination_log(child.name, self._run_dir).read_text(encoding="utf-8").strip()
        except OSError:
            pass
        status = child.exit_status
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            hint = " (out of memory?)" if -status == signal.SIGKILL else ""
            return f"killed by {name}{hint}"
        return f"exit status {status}"

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(*self._reachable(), timeout=1.0)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _announce(self) -> None:
        host, port = self._reachable()
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        _say(f"\nserving at {url}/v1 - stop with Ctrl-C; try:\n")
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
