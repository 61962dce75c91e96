"""What a profiler's container tells the operator: its termination message.

A JSON object of format `dualpace-profile-report/1`:

    {"format": "dualpace-profile-report/1",
     "profile": {…},                 a document of format dualpace-profile/1
     "topology": {"cpus": 32, "threads_per_core": 2, "numa_nodes": 1}}

or, since the kubelet keeps 4096 bytes, `gz:` followed by the base64 of that object compressed with
gzip. The container has no access to the API server; docs/adr/0004 says why. The profile is read as
engines read it, so that none is mounted that they would refuse.
"""

import base64
import binascii
import dataclasses
import functools
import json
import zlib
from dataclasses import dataclass

from pydantic import ValidationError

from dualpace.core.errors import ProfileError
from dualpace.operator.model.base import SpecModel, faults
from dualpace.operator.model.profile import Threshold, Topology
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.profile_json import profile_from_json

REPORT_FORMAT = "dualpace-profile-report/1"
_MAX_DOCUMENT_BYTES = 256 << 10


class ReportError(ValueError):
    """A report cannot be used; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A measurement's outcome."""

    origin: str
    gpu: str
    host: str
    topology: Topology | None
    thresholds: tuple[Threshold, ...]
    document: str


class _Thresholds(SpecModel):
    thresholds: list[Threshold]


def decode_report(message: str) -> Report:
    """Read a termination message. Raises ReportError."""
    text = _inflate(message[3:]) if message.startswith("gz:") else message
    try:
        report = json.loads(text)
    except ValueError:
        raise ReportError("the profiler's last message is no JSON document") from None
    if not isinstance(report, dict) or report.get("format") != REPORT_FORMAT:
        raise ReportError(f"the profiler's last message is not of format {REPORT_FORMAT}")
    document = json.dumps(report.get("profile"), separators=(",", ":"), sort_keys=True)
    try:
        profile = read_document(document)
        thresholds = _Thresholds.model_validate(
            {"thresholds": [dataclasses.asdict(t) for t in profile.thresholds]}
        )
        topology = Topology.model_validate(report["topology"]) if "topology" in report else None
    except ProfileError as error:
        raise ReportError(str(error)) from None
    except ValidationError as error:
        raise ReportError("; ".join(faults(error, "report"))) from None
    if len({t.name for t in thresholds.thresholds}) != len(thresholds.thresholds):
        raise ReportError("profile.thresholds: a name occurs twice")
    return Report(
        origin=profile.origin.value,
        gpu=profile.gpu_name[:1024],
        host=profile.host_name[:1024],
        topology=topology,
        thresholds=tuple(thresholds.thresholds),
        document=document,
    )


@functools.lru_cache(maxsize=2048)
def read_document(text: str) -> Profile:
    """Return a profile from its document. Raises ProfileError naming what is wrong."""
    try:
        document = json.loads(text)
    except ValueError:
        raise ProfileError("profile: not JSON") from None
    return profile_from_json(document)


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
