"""Names, labels and annotations of everything that the operator makes.

A name follows from what an object is for, so no two can be made for one purpose.
"""

import hashlib
import json
from typing import Any

from dualpace.operator.model import GROUP

FIELD_MANAGER = "dualpace-operator"

SERVICE_LABEL = f"{GROUP}/service"
COMPONENT_LABEL = f"{GROUP}/component"
NODE_KEY_LABEL = f"{GROUP}/node-key"
NODE_ANNOTATION = f"{GROUP}/node"
NODE_UID_ANNOTATION = f"{GROUP}/node-uid"
TEMPLATE_ANNOTATION = f"{GROUP}/template"
FINGERPRINT_ANNOTATION = f"{GROUP}/fingerprint"
REQUEST_ANNOTATION = f"{GROUP}/reprofile"
"""On a NodeProfile: a new value asks for a new measurement."""
DRIFT_ANNOTATION = f"{GROUP}/profile-drift"
"""On a node's pod: the times that its engines see are no longer those of the profile."""
THRESHOLDS_ANNOTATION = f"{GROUP}/measured-thresholds"
"""On a NodeProfile: digest of the thresholds as measured, to see edits by hand."""
ATTEMPT_ANNOTATION = f"{GROUP}/attempt"

NODE_COMPONENT = "node"
PROFILER_COMPONENT = "profiler"

_MAX_NAME = 63


def digest(value: Any, length: int = 8) -> str:
    """Return hexadecimal digits that stand for a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def node_key(node: str) -> str:
    """Return a label value that stands for a node: its name may be too long for one."""
    return digest(node, 16)


def node_object(service: str, node: str, suffix: str = "") -> str:
    """Return the name of a service's object for one node: readable, and unique by its digest."""
    tail = f"-{digest([service, node])}{suffix}"
    head = f"{service}-{node.replace('.', '-')}"[: _MAX_NAME - len(tail)].rstrip("-")
    return head + tail


def profile_name(node: str, model_key: str) -> str:
    """Return the name of the NodeProfile of a node with a model."""
    tail = f".{model_key}"
    return node[: 253 - len(tail)].rstrip("-.") + tail


def labels(service: str, component: str, node: str | None = None) -> dict[str, str]:
    """Return the labels of an object of a service."""
    result = {
        "app.kubernetes.io/name": "dualpace",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        "app.kubernetes.io/component": component,
        SERVICE_LABEL: service,
        COMPONENT_LABEL: component,
    }
    return result if node is None else result | {NODE_KEY_LABEL: node_key(node)}
