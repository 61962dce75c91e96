"""Everything that plans are made from, as it was last seen: a snapshot of views by kind."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dualpace.operator import names, observed
from dualpace.operator.model import API_VERSION
from dualpace.operator.observed import JobView, NodeView, ObjectView, PodView

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of objects: its API, how it is watched, and its view."""

    name: str
    api_version: str
    plural: str
    namespaced: bool
    ours: bool
    """Whether only objects with our label are looked at."""
    view: Callable[[Mapping[str, Any]], Any]


KINDS = {
    kind.name: kind
    for kind in (
        # In the order of a full listing. A result is taken over before its Job is deleted: a Job
        # that is gone from the listing has its result in a profile that is listed later.
        Kind(
            name="Job",
            api_version="batch/v1",
            plural="jobs",
            namespaced=True,
            ours=True,
            view=observed.job_view,
        ),
        Kind(
            name="Pod",
            api_version="v1",
            plural="pods",
            namespaced=True,
            ours=True,
            view=observed.pod_view,
        ),
        Kind(
            name="ConfigMap",
            api_version="v1",
            plural="configmaps",
            namespaced=True,
            ours=True,
            view=observed.object_view,
        ),
        Kind(
            name="Service",
            api_version="v1",
            plural="services",
            namespaced=True,
            ours=True,
            view=observed.object_view,
        ),
        Kind(
            name="NodeProfile",
            api_version=API_VERSION,
            plural="nodeprofiles",
            namespaced=False,
            ours=False,
            view=observed.object_view,
        ),
        Kind(
            name="Node",
            api_version="v1",
            plural="nodes",
            namespaced=False,
            ours=False,
            view=observed.node_view,
        ),
        Kind(
            name="DualPaceService",
            api_version=API_VERSION,
            plural="dualpaceservices",
            namespaced=True,
            ours=False,
            view=observed.object_view,
        ),
    )
}


@dataclass(slots=True)
class World:
    """Views by kind and key."""

    views: dict[str, dict[Key, Any]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    drifting: set[str] = field(default_factory=set)
    """Uids of pods whose engines want a new profile."""

    @property
    def services(self) -> dict[Key, ObjectView]:
        """DualPaceServices."""
        return self.views["DualPaceService"]

    @property
    def nodes(self) -> dict[Key, NodeView]:
        """Nodes."""
        return self.views["Node"]

    @property
    def profiles(self) -> dict[Key, ObjectView]:
        """NodeProfiles."""
        return self.views["NodeProfile"]

    def pods_of(self, service: Key, component: str) -> list[PodView]:
        """Return a service's pods of one component."""
        return [
            pod
            for pod in self.views["Pod"].values()
            if pod.id.service == service and pod.id.labels.get(names.COMPONENT_LABEL) == component
        ]

    def jobs_of(self, service: Key) -> dict[str, list[JobView]]:
        """Return a service's Jobs by node."""
        result: dict[str, list[JobView]] = defaultdict(list)
        for job in self.views["Job"].values():
            if job.id.service == service:
                result[job.id.node].append(job)
        return result

    def configs_of(self, service: Key) -> dict[str, ObjectView]:
        """Return a service's ConfigMaps by node."""
        return {
            config.id.node: config
            for config in self.views["ConfigMap"].values()
            if config.id.service == service
        }

    def pods_on_nodes(self) -> dict[Key, set[str]]:
        """Return the nodes that each service has pods for."""
        result: dict[Key, set[str]] = defaultdict(set)
        for pod in self.views["Pod"].values():
            result[pod.id.service].add(pod.id.node)
        return result
