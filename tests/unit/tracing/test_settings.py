"""Whether spans are wanted, by OpenTelemetry's variables."""

import subprocess
import sys

import pytest

from dualpace.core.errors import SettingsError
from dualpace.tracing import open_tracing
from dualpace.tracing.settings import TracingSettings

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:4318"},
        ENDPOINT | {"OTEL_SDK_DISABLED": "true"},
        ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ],
)
def test_no_spans_unless_an_endpoint_is_named(environ: dict[str, str]) -> None:
    assert TracingSettings.read(environ) is None
    with open_tracing("gateway", environ) as tracing:
        assert tracing is None


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [
        (ENDPOINT, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x/v1/traces"}, "http/protobuf"),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        (
            ENDPOINT
            | {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            "http/protobuf",
        ),
    ],
)
def test_the_protocol_is_the_most_specific_one(environ: dict[str, str], protocol: str) -> None:
    assert TracingSettings.read(environ) == TracingSettings(protocol)


def test_a_protocol_that_is_not_spoken_is_named() -> None:
    environ = ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    with pytest.raises(SettingsError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json' is not"):
        TracingSettings.read(environ)


def test_what_makes_spans_is_not_imported_where_none_are_wanted() -> None:
    code = (
        "import sys, dualpace.gateway.telemetry.request_trace, dualpace.tracing\n"
        "with dualpace.tracing.open_tracing('gateway', {}): pass\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry.sdk.trace', "
        "'opentelemetry.exporter'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_sdk_is_told_with_what_to_install() -> None:
    code = (
        "import sys\nsys.modules['opentelemetry.sdk.resources'] = None\n"
        "from dualpace.core.errors import SettingsError\n"
        "from dualpace.tracing import open_tracing\n"
        "try:\n"
        f"    open_tracing('gateway', {ENDPOINT!r}).__enter__()\n"
        "except SettingsError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'dualpace[otel]'" in done.stdout
