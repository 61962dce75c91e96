"""Where spans go, from OpenTelemetry's own variables, which every process of a node shares."""

from collections.abc import Mapping
from dataclasses import dataclass

from dualpace.core.errors import SettingsError

PROTOCOLS = ("http/protobuf", "grpc")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Which exporter there is to be; it reads endpoint, headers and certificates itself."""

    protocol: str

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "TracingSettings | None":
        """Return the settings; None where no spans are wanted.

        Raises SettingsError for a protocol that is not spoken.
        """
        disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        unwanted = environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none"
        if disabled or unwanted or not any(environ.get(name, "").strip() for name in _ENDPOINTS):
            return None
        for name in _PROTOCOLS:
            protocol = environ.get(name, "").strip()
            if not protocol:
                continue
            if protocol not in PROTOCOLS:
                raise SettingsError(f"{name}: {protocol!r} is not one of {', '.join(PROTOCOLS)}")
            return cls(protocol)
        return cls("http/protobuf")
