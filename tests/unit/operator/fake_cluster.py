"""An API server in a dictionary, with controllers and kubelets in a few lines: enough for plans.

What a real API server does beyond this is tested on a real one (tests/integration/operator).
"""

import copy
import itertools
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from dualpace.operator import names
from dualpace.operator.actions import Action, Annotate, Apply, Create, Delete, SetStatus
from dualpace.operator.images import ServiceImages
from dualpace.operator.plan import Plan, plan_service
from dualpace.operator.store import Store
from dualpace.operator.world import KINDS, World
from tests.cluster.kubelet import node_status, report

IMAGES = ServiceImages(gateway="g:1", gpu_engine="u:1", cpu_engine="c:1", profiler="p:1")
KEY = ("llm", "chat")
SPEC = {"model": {"claim": {"name": "models"}}, "nodeSelector": {"pool": "gpu"}}

Body = dict[str, Any]


class FakeCluster:
    """Objects by kind, namespace and name; time moves when told."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Body] = {}
        self.now = datetime(2026, 1, 1, 12, tzinfo=UTC)
        self.report: str | None = report()
        """What profilers say next: a report, `!` and a failure, or None: they go on measuring."""
        self.drifting: set[str] = set()
        """Uids of pods whose engines want a new profile."""
        self._uids = itertools.count(1)

    def add(self, kind: str, name: str, namespace: str = "", **parts: Any) -> Body:
        meta = {"name": name, "uid": f"uid-{next(self._uids)}", "generation": 1}
        meta["creationTimestamp"] = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"kind": kind, **copy.deepcopy(parts)}
        body["metadata"] = {**meta, **body.get("metadata", {}), "namespace": namespace}
        self.objects[kind, namespace, name] = body
        return body

    def add_node(self, name: str, cpus: str = "32") -> Body:
        return self.add(
            "Node", name, metadata={"labels": {"pool": "gpu"}}, spec={}, **node_status(cpus)
        )

    def add_service(self, spec: Mapping[str, Any] | None = None, name: str = "chat") -> Body:
        return self.add("DualPaceService", name, "llm", spec=dict(spec or SPEC))

    def get(self, kind: str, name: str, namespace: str = "") -> Body:
        return self.objects[kind, namespace, name]

    def all(self, kind: str, component: str | None = None) -> list[Body]:
        return [
            body
            for (k, _, _), body in self.objects.items()
            if k == kind
            and (
                component is None
                or body["metadata"].get("labels", {}).get(names.COMPONENT_LABEL) == component
            )
        ]

    def world(self) -> World:
        store = Store(lambda *_: None)
        for kind in KINDS:
            store.take_listing(kind, copy.deepcopy(self.all(kind)))
        store.note_drift(self.drifting)
        return store.world

    def plan(self, key: tuple[str, str] = KEY, images: ServiceImages = IMAGES) -> Plan:
        return plan_service(key, self.world(), images, self.now)

    def reconcile(self, key: tuple[str, str] = KEY) -> Plan:
        plan = self.plan(key)
        for action in plan.actions:
            self.carry_out(action)
        return plan

    def settle(self, key: tuple[str, str] = KEY, *, limit: int = 60) -> int:
        """Reconcile, with kubelets that keep up, until nothing is left to do; returns the turns."""
        plan = Plan()
        for turn in range(limit):
            plan = self.reconcile(key)
            moved = self.kubelets()
            if not plan.actions and not moved:
                return turn
            self.now += timedelta(seconds=31)
        raise AssertionError(f"still at work after {limit} turns: {plan.actions}")

    def carry_out(self, action: Action) -> None:
        match action:
            case Apply(manifest):
                meta = manifest["metadata"]
                held = self.objects.get((manifest["kind"], meta.get("namespace", ""), meta["name"]))
                if held is None:
                    self._create(manifest)
                else:
                    _merge(held, manifest)
            case Create(manifest):
                meta = manifest["metadata"]
                if (manifest["kind"], meta["namespace"], meta["name"]) not in self.objects:
                    self._create(manifest)
            case Delete(kind, namespace, name, uid, force):
                self._delete((kind, namespace, name), uid, at_once=force or kind != "Pod")
            case SetStatus(kind, namespace, name, status):
                if (kind, namespace, name) in self.objects:
                    self.objects[kind, namespace, name]["status"] = copy.deepcopy(status)

            case Annotate(kind, namespace, name, annotation, value):
                if (kind, namespace, name) in self.objects:
                    meta = self.objects[kind, namespace, name]["metadata"]
                    meta.setdefault("annotations", {})[annotation] = value

    def _create(self, manifest: Body) -> None:
        body = copy.deepcopy(manifest)
        meta, kind = body.pop("metadata"), body.pop("kind")
        made = self.add(kind, meta["name"], meta.get("namespace", ""), metadata=meta, **body)
        if kind == "Job":
            template = copy.deepcopy(made["spec"]["template"])
            template["metadata"]["labels"]["job-name"] = meta["name"]
            owner = [{"kind": "Job", "uid": made["metadata"]["uid"]}]
            template["metadata"]["ownerReferences"] = owner
            self.add("Pod", meta["name"] + "-x", meta["namespace"], **template)

    def _delete(self, key: tuple[str, str, str], uid: str, *, at_once: bool) -> None:
        body = self.objects.get(key)
        if body is None or body["metadata"]["uid"] != uid:
            return
        if not at_once:
            body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return
        del self.objects[key]
        for other in [k for k, b in self.objects.items() if _owner(b) == uid]:
            self._delete(other, self.objects[other]["metadata"]["uid"], at_once=True)

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        key = (kind, namespace, name)
        if key in self.objects:
            self._delete(key, self.objects[key]["metadata"]["uid"], at_once=True)

    def kubelets(self, only: Iterable[str] | None = None) -> bool:
        """Move every pod one step, or those on some nodes; returns whether any moved."""
        moved = False
        for pod in list(self.all("Pod")):
            node = pod["metadata"]["annotations"][names.NODE_ANNOTATION]
            if ("Node", "", node) in self.objects and (only is None or node in only):
                moved |= self._kubelet(pod)
        return moved

    def _kubelet(self, pod: Body) -> bool:
        meta = pod["metadata"]
        if "deletionTimestamp" in meta:
            self._delete(("Pod", meta["namespace"], meta["name"]), meta["uid"], at_once=True)
            return True
        if pod.get("status"):
            return False
        if meta["labels"][names.COMPONENT_LABEL] == names.NODE_COMPONENT:
            pod["status"] = {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            return True
        if self.report is None:
            return False
        failed = self.report.startswith("!")
        state = {"terminated": {"message": self.report.removeprefix("!")}}
        pod["status"] = {
            "phase": "Failed" if failed else "Succeeded",
            "containerStatuses": [{"name": "profiler", "state": state}],
        }
        job = self.get("Job", meta["labels"]["job-name"], meta["namespace"])
        job["status"] = {
            "conditions": [
                {
                    "type": "Failed" if failed else "Complete",
                    "status": "True",
                    "reason": "BackoffLimitExceeded" if failed else "",
                    "lastTransitionTime": self.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            ]
        }
        return True


def _owner(body: Body) -> str:
    return str((body["metadata"].get("ownerReferences") or [{}])[0].get("uid", ""))


def _merge(held: Body, wanted: Mapping[str, Any]) -> None:
    for key, value in wanted.items():
        if isinstance(value, Mapping) and isinstance(held.get(key), dict):
            _merge(held[key], value)
        else:
            held[key] = copy.deepcopy(value)
