"""What a profiler's container tells the operator: its termination message.

A JSON object of format `dualpace-profile-report/1`:

    {"format": "dualpace-profile-report/1",
     "profile": {…},                 a document of format dualpace-profile/1
     "topology": {"cpus": 32, "threads_per_core": 2, "numa_nodes": 1}}

or, since the kubelet keeps 4096 bytes, `gz:` followed by the base64 of that object compressed with
gzip. The container has no access to the API server; docs/adr/0003 says why. The tables of the
profile are the engines' business: here only what the NodeProfile shows is looked at.
"""

import base64
import binascii
import gzip
import json
import zlib
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from dualpace.operator.model.base import SpecModel, faults
from dualpace.operator.model.profile import DOCUMENT_FORMAT, Threshold, Topology

REPORT_FORMAT = "dualpace-profile-report/1"
MAX_MESSAGE_BYTES = 4096
"""Kubernetes' limit on a container's termination message."""
_MAX_DOCUMENT_BYTES = 256 << 10


class ReportError(ValueError):
    """A report cannot be used; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A measurement's outcome."""

    origin: Literal["measured", "roofline"]
    gpu: str
    host: str
    topology: Topology | None
    thresholds: tuple[Threshold, ...]
    document: str


class _Thresholds(SpecModel):
    thresholds: list[Threshold]


def encode_report(profile: dict[str, Any], topology: dict[str, int] | None = None) -> str:
    """Return the termination message of a measurement. Raises ReportError if it is too long."""
    report: dict[str, Any] = {"format": REPORT_FORMAT, "profile": profile}
    if topology is not None:
        report["topology"] = topology
    text = json.dumps(report, separators=(",", ":"))
    if len(text.encode()) > MAX_MESSAGE_BYTES:
        text = "gz:" + base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    if len(text) > MAX_MESSAGE_BYTES:
        raise ReportError(f"{len(text)} bytes compressed; {MAX_MESSAGE_BYTES} are kept")
    return text


def decode_report(message: str) -> Report:
    """Read a termination message. Raises ReportError."""
    text = _inflate(message[3:]) if message.startswith("gz:") else message
    try:
        report = json.loads(text)
    except ValueError:
        raise ReportError("the profiler's last message is no JSON document") from None
    if not isinstance(report, dict) or report.get("format") != REPORT_FORMAT:
        raise ReportError(f"the profiler's last message is not of format {REPORT_FORMAT}")
    profile = report.get("profile")
    if not isinstance(profile, dict) or profile.get("format") != DOCUMENT_FORMAT:
        raise ReportError(f"the profile is not of format {DOCUMENT_FORMAT}")
    if profile.get("origin") not in ("measured", "roofline"):
        raise ReportError("profile.origin: neither measured nor roofline")
    hardware = profile.get("hardware")
    hardware = hardware if isinstance(hardware, dict) else {}
    try:
        thresholds = _Thresholds.model_validate({"thresholds": profile.get("thresholds", [])})
        topology = Topology.model_validate(report["topology"]) if "topology" in report else None
    except ValidationError as error:
        raise ReportError("; ".join(faults(error, "profile"))) from None
    if len({t.name for t in thresholds.thresholds}) != len(thresholds.thresholds):
        raise ReportError("profile.thresholds: a name occurs twice")
    return Report(
        origin=profile["origin"],
        gpu=str(hardware.get("gpu", ""))[:1024],
        host=str(hardware.get("host", ""))[:1024],
        topology=topology,
        thresholds=tuple(thresholds.thresholds),
        document=json.dumps(profile, separators=(",", ":"), sort_keys=True),
    )


def _inflate(text: str) -> str:
    """Decompress with a bound: the message is not trusted to be small inside."""
    try:
        inflater = zlib.decompressobj(wbits=31)
        data = inflater.decompress(base64.b64decode(text, validate=True), _MAX_DOCUMENT_BYTES)
        if inflater.unconsumed_tail or not inflater.eof:
            raise ReportError(f"the report is cut off, or over {_MAX_DOCUMENT_BYTES} bytes")
        return data.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, ReportError):
            raise
        raise ReportError("the profiler's last message cannot be decompressed") from None
