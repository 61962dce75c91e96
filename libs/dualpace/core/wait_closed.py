"""Waits until nobody listens on a local TCP port: how an engine's container outlives its gateway.

`python -m dualpace.core.wait_closed --port=8000 --timeout-s=60` is meant as preStop hook. All
containers of a pod are told to stop at once, but each only after its hook; the gateway closes its
port when its last request is done. Exits with 0 in any case: a hook has nobody to complain to.
"""

import socket
import sys
import time
from dataclasses import dataclass

from dualpace.core.errors import SettingsError
from dualpace.core.settings import parse_settings, require, setting

_POLL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSettings:
    """Wait until a TCP port of this host is closed."""

    port: int = setting("TCP port.")
    host: str = setting("Address.", default="127.0.0.1")
    timeout_s: float = setting("Longest wait.", default=60.0)

    def __post_init__(self) -> None:
        require(0 < self.port < 1 << 16, f"port: {self.port} is not in 1..65535")


def wait_closed(host: str, port: int, timeout_s: float) -> bool:
    """Return whether the port refused a connection before the time was over."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=_POLL_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            pass  # a full backlog is no closed port
        time.sleep(_POLL_S)
    return False


def main() -> int:
    """Wait; returns the exit status."""
    try:
        settings = parse_settings(WaitSettings, sys.argv[1:], {}, program="wait_closed", prefix="")
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    if not wait_closed(settings.host, settings.port, settings.timeout_s):
        print(f"port {settings.port} is still open", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
