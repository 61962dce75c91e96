"""Starts tracing where OpenTelemetry's own variables say so, and ends it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dualpace.core.errors import SettingsError
from dualpace.tracing.port import Tracing
from dualpace.tracing.settings import TracingSettings


@contextmanager
def open_tracing(service: str, environ: Mapping[str, str] = os.environ) -> Iterator[Tracing | None]:
    """Trace for as long as the context lasts, if the environment says where spans go.

    Raises SettingsError if OpenTelemetry is not installed, or a variable makes no sense.
    """
    settings = TracingSettings.read(environ)
    if settings is None:
        yield None
        return
    try:
        from dualpace.tracing.otel import OtelTracing, make_exporter  # noqa: PLC0415 - not when off

        tracing = OtelTracing(service, make_exporter(settings.protocol))
    except ImportError as error:
        raise SettingsError(
            f"traces are wanted, but {error.name} is not installed: pip install 'dualpace[otel]'"
        ) from None
    try:
        yield tracing
    finally:
        tracing.close()
