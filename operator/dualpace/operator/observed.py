"""What plans are made from: small frozen views of the objects that the API server holds.

A view keeps what decisions need, so that hundreds of nodes fit in little memory and a change that
nobody cares about compares equal. It knows nothing of what is wanted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dualpace.operator import names

Body = Mapping[str, Any]


def parse_time(text: str | None) -> datetime | None:
    """Return a Kubernetes timestamp."""
    return None if not text else datetime.fromisoformat(text).astimezone(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Metadata that every view has."""

    namespace: str
    name: str
    uid: str
    deleting: bool
    labels: Mapping[str, str] = field(hash=False)
    annotations: Mapping[str, str] = field(hash=False)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace, empty for cluster-scoped objects, and name."""
        return self.namespace, self.name

    @property
    def service(self) -> tuple[str, str]:
        """Namespace and name of the service that it belongs to; an empty name: none."""
        return self.namespace, self.labels.get(names.SERVICE_LABEL, "")

    @property
    def node(self) -> str:
        """Name of the node that it was made for; empty: none."""
        return self.annotations.get(names.NODE_ANNOTATION, "")


def _identity(body: Body, annotations: Mapping[str, str] | None = None) -> Identity:
    meta = body["metadata"]
    ours = {
        key: value
        for key, value in (meta.get("annotations") or {}).items()
        if key.startswith(names.NODE_ANNOTATION.split("/")[0] + "/")
    }
    return Identity(
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta.get("uid", ""),
        deleting="deletionTimestamp" in meta,
        labels=dict(meta.get("labels") or {}),
        annotations=ours if annotations is None else annotations,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node: where pods may go, and what a measurement on it depends on."""

    id: Identity
    unschedulable: bool
    ready: bool
    cpus: int
    """Allocatable, whole."""
    memory: str
    """Capacity."""
    kernel: str
    gpus: str


def node_view(body: Body) -> NodeView:
    """Return the view of a Node."""
    status = body.get("status") or {}
    allocatable, capacity = status.get("allocatable") or {}, status.get("capacity") or {}
    cpus = str(allocatable.get("cpu", "0"))
    return NodeView(
        id=_identity(body),
        unschedulable=bool((body.get("spec") or {}).get("unschedulable")),
        ready=_condition(status, "Ready") == "True",
        cpus=int(cpus[:-1]) // 1000 if cpus.endswith("m") else int(float(cpus)),
        memory=str(capacity.get("memory", "")),
        kernel=(status.get("nodeInfo") or {}).get("kernelVersion", ""),
        gpus=",".join(f"{k}={v}" for k, v in sorted(capacity.items()) if "gpu" in k),
    )


def _condition(status: Mapping[str, Any], kind: str) -> str:
    return next(
        (c.get("status", "") for c in status.get("conditions") or () if c.get("type") == kind), ""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A node's pod, or a profiler's."""

    id: Identity
    phase: str
    ready: bool
    trouble: str
    """Why it does not run, as far as the kubelet or the scheduler says; empty: no reason known."""
    report: str
    """What its first terminated container left as its last message."""
    endpoint: str = ""
    """Address and port of its HTTP side; empty while it has none."""


def pod_view(body: Body) -> PodView:
    """Return the view of a Pod."""
    status = body.get("status") or {}
    return PodView(
        id=_identity(body),
        phase=status.get("phase", "Pending"),
        ready=_condition(status, "Ready") == "True",
        trouble=_trouble(status),
        report=next(
            (
                terminated.get("message", "")
                for c in status.get("containerStatuses") or ()
                if (terminated := (c.get("state") or {}).get("terminated"))
            ),
            "",
        ),
        endpoint=_endpoint(body),
    )


def _endpoint(body: Body) -> str:
    address = (body.get("status") or {}).get("podIP")
    ports = (
        port["containerPort"]
        for container in (body.get("spec") or {}).get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("name") == "http"
    )
    port = next(ports, None)
    if not address or port is None:
        return ""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _trouble(status: Mapping[str, Any]) -> str:
    if status.get("reason"):  # the kubelet's: Evicted, OutOfcpu, TopologyAffinityError
        return f"{status['reason']}: {status.get('message', '')}".rstrip(": ")
    containers = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            last = (container.get("lastState") or {}).get("terminated") or {}
            said = (last.get("message") or waiting.get("message") or "").strip()
            return f"{container['name']}: {waiting['reason']}: {said}".rstrip(": ")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}".rstrip(": ")
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A measurement."""

    id: Identity
    finished: datetime | None
    succeeded: bool
    reason: str

    @property
    def attempt(self) -> int:
        """Which try it is, from 1."""
        text = self.id.annotations.get(names.ATTEMPT_ANNOTATION, "1")
        return int(text) if text.isdecimal() else 1


def job_view(body: Body) -> JobView:
    """Return the view of a Job."""
    status = body.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            said = f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
            finished = parse_time(condition.get("lastTransitionTime")) or datetime.now(UTC)
            succeeded = condition["type"] == "Complete"
            return JobView(id=_identity(body), finished=finished, succeeded=succeeded, reason=said)
    return JobView(id=_identity(body), finished=None, succeeded=False, reason="")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectView:
    """Something that is applied: its content is compared with what is wanted."""

    id: Identity
    body: Mapping[str, Any] = field(hash=False)
    owner_uid: str

    @property
    def generation(self) -> int:
        """Counts changes of the spec."""
        return int(self.body["metadata"].get("generation", 0))


def object_view(body: Body) -> ObjectView:
    """Return the view of a ConfigMap, Service, NodeProfile or DualPaceService."""
    kept = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
    # The version of every write, our own included, is no change of content.
    kept.pop("resourceVersion", None)
    owners = kept.get("ownerReferences") or [{}]
    return ObjectView(
        id=_identity(body),
        body={**{k: v for k, v in body.items() if k != "metadata"}, "metadata": kept},
        owner_uid=owners[0].get("uid", ""),
    )


def covers(observed: Any, wanted: Any) -> bool:
    """Return whether all that is wanted is there; what else is there is others' business."""
    if isinstance(wanted, Mapping):
        return isinstance(observed, Mapping) and all(
            key in observed and covers(observed[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(observed, list)
            and len(observed) == len(wanted)
            and all(covers(o, w) for o, w in zip(observed, wanted, strict=True))
        )
    return bool(observed == wanted)
