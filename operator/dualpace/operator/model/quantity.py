"""Kubernetes quantities and durations, as strings with a pattern and as numbers.

Source of the forms: the API's resource.Quantity and metav1.Duration; only the forms that people
write are taken: no exponents, no sub-milli suffixes, no signs.
"""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

_BYTES = r"^[0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)?$"
_CPUS = r"^([0-9]+m|[0-9]+(\.[0-9]+)?)$"
_DURATION = r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?$"

_SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}


def parse_bytes(text: str) -> int:
    """Return a quantity of memory in bytes. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+)([A-Za-z]*)", text)
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"{text!r} is not a quantity of memory such as 512Mi or 64Gi")
    return int(match[1]) * _SUFFIXES[match[2]]


def parse_cpus(text: str) -> Decimal:
    """Return a quantity of CPUs, such as 4, 0.5 or 500m. Raises ValueError."""
    if re.fullmatch(_CPUS, text) is None:
        raise ValueError(f"{text!r} is not a number of CPUs such as 4 or 500m")
    return Decimal(text[:-1]) / 1000 if text.endswith("m") else Decimal(text)


def parse_duration(text: str) -> int:
    """Return a duration such as 720h, 1h30m or 45s in seconds. Raises ValueError."""
    match = re.fullmatch(_DURATION, text)
    if match is None or not text:
        raise ValueError(f"{text!r} is not a duration such as 720h, 1h30m or 45s")
    hours, minutes, seconds = (int(part[:-1]) if part else 0 for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _positive_bytes(text: str) -> str:
    if parse_bytes(text) == 0:
        raise ValueError("must be more than zero")
    return text


def _duration(text: str) -> str:
    parse_duration(text)
    return text


Bytes = Annotated[str, StringConstraints(pattern=_BYTES), AfterValidator(_positive_bytes)]
"""Memory, as a string: 512Mi, 64Gi."""

Duration = Annotated[
    str, StringConstraints(pattern=_DURATION, min_length=2), AfterValidator(_duration)
]
"""A span of time, as a string: 720h, 1h30m, 45s."""
