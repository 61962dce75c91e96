"""Probes, version and metrics. None of them runs a generation or waits for an engine."""

from importlib.metadata import PackageNotFoundError, version

from starlette.responses import Response

from dualpace.gateway.errors import error_response, json_response, unavailable
from dualpace.gateway.serving import Gateway
from dualpace.gateway.telemetry.metrics import CONTENT_TYPE


def live() -> Response:
    """Answer: the event loop turns. Engines have probes of their own."""
    return json_response({"status": "alive"})


def ready(gateway: Gateway) -> Response:
    """Answer whether new requests should come here; 503 says why not. Load is no reason."""
    return _status("ready", gateway.lifecycle.unready_reason())


def healthy(gateway: Gateway) -> Response:
    """Answer whether the engines can serve, as vLLM's /health does; draining does not count."""
    return _status("healthy", gateway.lifecycle.unhealthy_reason())


def metrics(gateway: Gateway) -> Response:
    """Return the metrics page."""
    return Response(gateway.metrics.page(), media_type=CONTENT_TYPE)


def show_version() -> Response:
    """Return the version of DualPace."""
    try:
        return json_response({"version": version("dualpace")})
    except PackageNotFoundError:  # run from a source tree
        return json_response({"version": "unknown"})


def _status(good: str, problem: str | None) -> Response:
    return (
        json_response({"status": good}) if problem is None else error_response(unavailable(problem))
    )
