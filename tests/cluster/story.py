"""Steps of a service's life, as an administrator takes them, and what must come of each."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from dualpace.operator import names
from tests.cluster.control_plane import ControlPlane

SERVICES = "/apis/serving.dualpace.io/v1alpha1/namespaces/{}/dualpaceservices"
PROFILES = "/apis/serving.dualpace.io/v1alpha1/nodeprofiles"


def until(what: str, holds: Callable[[], Any], timeout_s: float = 90.0) -> Any:
    """Wait until something holds; returns its value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = holds()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.05)


def service_body(name: str, selector: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.dualpace.io/v1alpha1",
        "kind": "DualPaceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"claim": {"name": "models", "path": "llama"}},
            "nodeSelector": dict(selector),
            **spec,
        },
    }


class Story:
    """One service in a namespace of its own."""

    def __init__(self, plane: ControlPlane, namespace: str, name: str = "chat") -> None:
        self.plane, self.namespace, self.name = plane, namespace, name
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})

    @property
    def path(self) -> str:
        return f"{SERVICES.format(self.namespace)}/{self.name}"

    def create(self, selector: Mapping[str, str], **spec: Any) -> None:
        body = service_body(self.name, selector, **spec)
        self.plane.request("POST", SERVICES.format(self.namespace), body)

    def status(self) -> dict[str, Any]:
        body = self.plane.request("GET", self.path) or {}
        status = body.get("status") or {}
        seen = status.get("observedGeneration") == body.get("metadata", {}).get("generation")
        return status if seen else {}

    def condition(self, kind: str) -> dict[str, Any]:
        found = (c for c in self.status().get("conditions", ()) if c["type"] == kind)
        return next(found, {})

    def settled(self, nodes: int) -> None:
        """Wait until that many nodes serve, and none is to be replaced or measured."""

        def holds() -> bool:
            counts = self.status().get("nodes", {})
            wanted = {"matched": nodes, "ready": nodes, "outdated": 0, "profiling": 0}
            return bool(wanted.items() <= counts.items())

        until(f"{nodes} nodes of {self.name} serve", holds)

    def pods(self, component: str = names.NODE_COMPONENT) -> list[dict[str, Any]]:
        selector = f"{names.SERVICE_LABEL}={self.name},{names.COMPONENT_LABEL}={component}"
        return self.plane.items(
            f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}"
        )

    def pod_uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods()}

    def ready_pods(self) -> int:
        return sum(
            "deletionTimestamp" not in pod["metadata"]
            and any(
                c["type"] == "Ready" and c["status"] == "True"
                for c in pod["status"].get("conditions", ())
            )
            for pod in self.pods()
        )

    def configs(self) -> dict[str, dict[str, str]]:
        """Data of the ConfigMaps by node."""
        items = self.plane.items(
            f"/api/v1/namespaces/{self.namespace}/configmaps?labelSelector={names.SERVICE_LABEL}"
        )
        return {i["metadata"]["annotations"][names.NODE_ANNOTATION]: i["data"] for i in items}

    def owned(self) -> list[str]:
        """Everything of the service that exists."""
        found = []
        for root, plural in (("/api/v1", "pods"), ("/api/v1", "configmaps"),
                             ("/api/v1", "services"), ("/apis/batch/v1", "jobs")):  # fmt: skip
            path = f"{root}/namespaces/{self.namespace}/{plural}"
            found += [
                f"{plural}/{i['metadata']['name']}"
                for i in self.plane.items(f"{path}?labelSelector={names.SERVICE_LABEL}={self.name}")
            ]
        return found

    def patch(self, spec: Mapping[str, Any]) -> None:
        self.plane.merge(self.path, {"spec": spec})

    def delete(self) -> None:
        self.plane.request("DELETE", self.path)
        until("everything owned is gone", lambda: not self.owned())


def profiles_of(plane: ControlPlane, node: str) -> list[dict[str, Any]]:
    return [p for p in plane.items(PROFILES) if p["spec"]["nodeName"] == node]
