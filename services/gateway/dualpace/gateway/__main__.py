"""Entry point of the gateway: settings, wiring, start and stop."""

import contextlib
import logging
import sys
from pathlib import Path

from dualpace.core.clock import SystemClock
from dualpace.core.process import StopRequest
from dualpace.core.service import service_main
from dualpace.gateway.engines.backend import Backend
from dualpace.gateway.engines.node import NodeBackend
from dualpace.gateway.garbage import settle_garbage_collector
from dualpace.gateway.http.app import build_app, build_gateway
from dualpace.gateway.http.server import GatewayServer, open_admin_listener, open_listener
from dualpace.gateway.settings import GatewaySettings
from dualpace.gateway.text.model import ServedModel
from dualpace.gateway.text.model_loading import load_model
from dualpace.ipc.rpc import CPU_SOCKET, GPU_SOCKET
from dualpace.pinning import pin_process
from dualpace.tracing import open_tracing

log = logging.getLogger("dualpace.gateway")


def main() -> int:
    """Run the service; returns its exit status."""
    return service_main("gateway", GatewaySettings, _serve)


def _serve(settings: GatewaySettings, stop: StopRequest) -> None:
    stop.install_signals()
    pin_process(settings.cores).settle()
    with contextlib.ExitStack() as sockets, open_tracing("gateway") as tracing:
        listener = sockets.enter_context(open_listener(settings))
        admin_listener = open_admin_listener(settings)
        if admin_listener is not None:
            sockets.enter_context(admin_listener)
        model = load_model(
            Path(settings.model), settings.model_names, tool_dialect=settings.tool_dialect
        )
        gateway = build_gateway(settings, model, _node(settings, model), tracing=tracing)
        server = GatewayServer(
            build_app(gateway), gateway, listener, stop, admin_listener=admin_listener
        )
        settle_garbage_collector()
        server.run()
    gateway.lifecycle.raise_failure()
    log.info("gateway stops: %s", stop.reason)


def _node(settings: GatewaySettings, model: ServedModel) -> Backend:
    """Return the client of this node's engines: the one place that names it."""
    run_dir = Path(settings.run_dir)
    return NodeBackend(
        run_dir / GPU_SOCKET,
        run_dir / CPU_SOCKET,
        clock=SystemClock(),
        model_fingerprint=model.fingerprint,
        engine_timeout_s=settings.engine_timeout_s,
        engine_wait_s=settings.engine_wait_s,
    )


if __name__ == "__main__":
    sys.exit(main())
