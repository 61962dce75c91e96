"""The short form of a profile that the operator reads from a container's termination message.

Kubernetes keeps 4096 bytes of it: evidence is left out, tables are thinned until they fit.
"""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

from dualpace.core.errors import ProfileError
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.profile_json import profile_to_json

FORMAT = "dualpace-profile-report/1"
MAX_BYTES = 4096


def write_report(path: Path, profile: Profile, topology: dict[str, int]) -> None:
    """Write the report. Raises ProfileError."""
    try:
        path.write_text(encode_report(profile, topology), encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"report: {path}: {error.strerror}") from None


def encode_report(profile: Profile, topology: dict[str, int]) -> str:
    """Return the message: JSON, or `gz:` and base64 of that compressed. Raises ProfileError."""
    document = profile_to_json(profile) | {"evidence": {}}
    report: dict[str, Any] = {"format": FORMAT, "profile": document, "topology": topology}
    while True:
        text = json.dumps(report, separators=(",", ":"))
        packed = "gz:" + base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        shortest = min(text, packed, key=lambda t: len(t.encode()))
        if len(shortest.encode()) <= MAX_BYTES:
            return shortest
        if not _thin(document):
            raise ProfileError(f"report: over {MAX_BYTES} bytes, however thin")


def _thin(document: dict[str, Any]) -> bool:
    """Drop every other inner knot of the longest table; whether there was one to drop."""
    tables = [
        table
        for side in ("gpu", "host", "transfers")
        for table in document[side].values()
        if isinstance(table, dict)
    ]
    longest = max(tables, key=lambda table: len(_axis(table)))
    axis = _axis(longest)
    keep = sorted({*range(0, len(axis), 2), len(axis) - 1})
    if len(keep) == len(axis):
        return False
    for name, values in longest.items():
        if values is axis:
            longest[name] = [axis[i] for i in keep]
        elif name == "ms" and isinstance(values[0], list):
            longest[name] = [[row[i] for i in keep] for row in values]
        elif name == "ms":
            longest[name] = [values[i] for i in keep]
    return True


def _axis(table: dict[str, Any]) -> list[int]:
    """Return a table's own axis; of a grid the KV tokens."""
    names = ("kv_tokens", "rows", "pairs", "bytes")
    values: list[int] = next(table[name] for name in names if name in table)
    return values
