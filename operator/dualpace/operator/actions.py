"""What a plan wants done to the API server. Each action is idempotent and names one object."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply: these fields shall have these values."""

    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object whose spec cannot be changed later; that it exists already is fine."""

    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this very object, not a successor of the same name. That it is gone is fine."""

    kind: str
    namespace: str
    name: str
    uid: str
    force: bool = False
    """Without waiting for a kubelet to confirm: its node is gone."""


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Replace the status of a custom resource."""

    kind: str
    namespace: str
    name: str
    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Annotate:
    """Set one annotation, and leave everything else to whoever owns it."""

    kind: str
    namespace: str
    name: str
    annotation: str
    value: str


Action = Apply | Create | Delete | SetStatus | Annotate


def describe(action: Action) -> str:
    """Return an action for a log or a condition."""
    verb = type(action).__name__.lower()
    if isinstance(action, Apply | Create):
        meta = action.manifest["metadata"]
        kind, namespace, name = action.manifest["kind"], meta.get("namespace", ""), meta["name"]
    else:
        kind, namespace, name = action.kind, action.namespace, action.name
    return f"{verb} {kind} {namespace + '/' if namespace else ''}{name}"
