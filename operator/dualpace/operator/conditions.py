"""metav1.Condition: what stays the same keeps its time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dualpace.operator.observed import parse_time

_MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition without its bookkeeping. True is good."""

    type: str
    status: bool | None
    """None: unknown."""
    reason: str
    message: str = ""


def conditions(
    findings: Iterable[Finding],
    previous: Iterable[Mapping[str, Any]],
    generation: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """Return the status's conditions; `previous` are those it had."""
    before = {c.get("type"): c for c in previous}
    result = []
    for finding in findings:
        status = {True: "True", False: "False", None: "Unknown"}[finding.status]
        old = before.get(finding.type, {})
        since = parse_time(old.get("lastTransitionTime")) if old.get("status") == status else None
        result.append(
            {
                "type": finding.type,
                "status": status,
                "reason": finding.reason,
                "message": finding.message[:_MAX_MESSAGE],
                "observedGeneration": generation,
                "lastTransitionTime": timestamp(since or now),
            }
        )
    return result


def compact(value: Any) -> Any:
    """Return a value without empty texts: absent says the same.

    Kubernetes 1.20 takes an empty text for null where the schema limits its length.
    """
    if isinstance(value, dict):
        return {k: compact(v) for k, v in value.items() if v != ""}
    if isinstance(value, list):
        return [compact(v) for v in value]
    return value


def timestamp(when: datetime) -> str:
    """Return a time as Kubernetes writes it."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
