"""Plays scheduler and kubelets: pods get a node, start, become ready, and end when deleted.

A profiler's pod succeeds with a report. Threads: one, polling; what it does to pods is what the
API server would see of a real node.
"""

import base64
import contextlib
import gzip
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from dualpace.operator import names
from dualpace.operator.report import REPORT_FORMAT
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.profile_json import profile_to_json
from tests.cluster.control_plane import ControlPlane


def profile_document(assist_rows: float = 24.0) -> dict[str, Any]:
    """A document that engines would read; its tables are estimates of a preset."""
    exact = profile_to_json(preset_profile("rtx-4090", "xeon-4510-120", "llama-3.1-8b"))
    # Three digits are what a measurement is worth, and what fits a termination message.
    document: dict[str, Any] = json.loads(
        json.dumps(exact), parse_float=lambda text: float(f"{float(text):.3g}")
    )
    document["thresholds"] = [
        {"name": "assist_min_rows", "value": assist_rows, "unit": "rows", "why": "crossover"}
    ]
    return document


def report(assist_rows: float = 24.0, threads_per_core: int = 2) -> str:
    """A profiler's last message, compressed as it has to be."""
    topology = {"cpus": 32, "threads_per_core": threads_per_core, "numa_nodes": 1}
    return packed(profile_document(assist_rows), topology)


def packed(profile: Any, topology: Any) -> str:
    text = json.dumps({"format": REPORT_FORMAT, "profile": profile, "topology": topology})
    return "gz:" + base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def node_body(name: str, cpus: str = "32", labels: Mapping[str, str] | None = None) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels or {})},
    }


def node_status(cpus: str = "32", kernel: str = "6.1.0-1") -> dict[str, Any]:
    size = {"cpu": cpus, "memory": "131072Mi", "nvidia.com/gpu": "1", "pods": "110"}
    return {
        "status": {
            "capacity": size,
            "allocatable": size,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {
                "kernelVersion": kernel,
                "architecture": "amd64",
                "bootID": "b",
                "containerRuntimeVersion": "containerd://1.7",
                "kubeProxyVersion": "v1",
                "kubeletVersion": "v1",
                "machineID": "m",
                "operatingSystem": "linux",
                "osImage": "Debian",
                "systemUUID": "s",
            },
        }
    }


def make_node(
    plane: ControlPlane, name: str, labels: Mapping[str, str] | None = None, cpus: str = "32"
) -> None:
    plane.request("POST", "/api/v1/nodes", node_body(name, labels=labels))
    plane.merge(f"/api/v1/nodes/{name}/status", node_status(cpus))


class Kubelets:
    """All nodes' kubelets, until stopped. `reports` gives the message of a profiler on a node."""

    def __init__(
        self,
        plane: ControlPlane,
        reports: Callable[[str], str | None] = lambda node: report(),
        poll_s: float = 0.1,
        threads: int = 1,
    ) -> None:
        self._plane, self.reports, self._poll_s = plane, reports, poll_s
        self._pool = ThreadPoolExecutor(threads)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.starts: list[str] = []
        """Names of serving pods, as they started."""
        self.failure: BaseException | None = None

    def __enter__(self) -> "Kubelets":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._pool.shutdown()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with contextlib.suppress(OSError, http.client.HTTPException):  # restarting
                    path = "/api/v1/pods?labelSelector=" + names.SERVICE_LABEL
                    list(self._pool.map(self._step, self._plane.items(path)))
                time.sleep(self._poll_s)
        except Exception as error:  # noqa: BLE001 - raised where the block ends
            self.failure = error

    def _step(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        profiler = meta["labels"][names.COMPONENT_LABEL] == names.PROFILER_COMPONENT
        if "deletionTimestamp" in meta:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
            self._try("DELETE", path, options)
        elif not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": _wanted_node(pod)}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}}
            self._try("POST", f"{path}/binding", binding | {"target": target})
        elif pod["status"].get("phase") == "Pending":
            node = pod["spec"]["nodeName"]
            if profiler:
                message = self.reports(node)
                if message is not None:
                    self._status(path, _finished(message), meta["uid"])
            else:
                self.starts.append(meta["name"])
                self._status(path, _running(pod), meta["uid"])

    def _status(self, path: str, status: dict[str, Any], uid: str) -> None:
        body = {"metadata": {"uid": uid}, "status": status}
        self._try("PATCH", path + "/status", body, "application/merge-patch+json")

    def _try(self, method: str, path: str, body: Any, kind: str = "application/json") -> None:
        try:
            self._plane.request(method, path, body, kind)
        except RuntimeError as error:
            if " 409 " not in str(error):  # changed or gone meanwhile
                raise


def _wanted_node(pod: dict[str, Any]) -> str:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return str(terms[0]["matchFields"][0]["values"][0])


def _running(pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": c["name"],
                "image": c["image"],
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {}},
            }
            for c in pod["spec"]["containers"]
        ],
    }


def _finished(message: str) -> dict[str, Any]:
    failed = message.startswith("!")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "phase": "Failed" if failed else "Succeeded",
        "containerStatuses": [
            {
                "name": "profiler",
                "image": "profiler",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {
                    "terminated": {
                        "exitCode": 1 if failed else 0,
                        "finishedAt": now,
                        "message": message.removeprefix("!"),
                    }
                },
            }
        ],
    }
