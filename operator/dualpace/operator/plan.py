"""What to do about one service: `plan_service(key, world, defaults, now)`. Pure.

It decides which nodes are the service's, shares the disruption budget among them, removes what is
left of nodes that are not any more, and sums up the status. What happens on one node is
`nodeplan`'s. A spec that cannot be used changes nothing: what runs goes on, and the status says
what is wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from dualpace.operator import names
from dualpace.operator.actions import Action, Apply, Delete, SetStatus
from dualpace.operator.conditions import compact
from dualpace.operator.crds import MAX_SERVICE_NAME
from dualpace.operator.fingerprint import model_key
from dualpace.operator.images import ServiceImages, images_of
from dualpace.operator.model.base import faults
from dualpace.operator.model.service import ServiceSpec
from dualpace.operator.nodeplan import (
    Budget,
    NodeInput,
    NodePlan,
    Phase,
    counts_as_out,
    plan_node,
)
from dualpace.operator.observed import NodeView, ObjectView, covers
from dualpace.operator.pod import PodContext, owner
from dualpace.operator.servicestatus import service_status
from dualpace.operator.world import Key, World


@dataclass(slots=True, kw_only=True)
class Plan:
    """What is to be done, in order, and how each node stands."""

    actions: list[Action] = field(default_factory=list)
    nodes: dict[str, NodePlan] = field(default_factory=dict)


def plan_service(
    key: Key,
    world: World,
    defaults: ServiceImages,
    now: datetime,
    write_failure: str = "",
) -> Plan:
    """Decide about one service.

    `write_failure` is what the API server said to the actions of the last plan, if it refused any.
    """
    service = world.services.get(key)
    if service is None or service.id.deleting:
        return Plan()  # what it owns is the garbage collector's
    spec, fault = read_spec(service)
    plan = Plan()
    if spec is not None:
        mine, conflicts = _claims(key, world)
        inputs = list(_inputs(service, spec, mine, world, defaults))
        _plan_nodes(plan, inputs, key, world, now)
        for node, other in conflicts.items():
            message = f"{other[0]}/{other[1]} selects this node too, and is older"
            plan.nodes[node] = NodePlan(phase=Phase.CONFLICT, message=message)
        wanted = _kubernetes_service(service)
        seen = world.views["Service"].get(key)
        if seen is None or not covers(seen.body, wanted):
            plan.actions.append(Apply(wanted))
        profiling = images_of(spec, defaults).profiler is not None
    else:
        profiling = False
    status = compact(
        service_status(
            service,
            plan.nodes,
            fault=fault,
            write_failure=write_failure,
            profiling=profiling,
            now=now,
        )
    )
    if status != service.body.get("status"):
        plan.actions.append(SetStatus("DualPaceService", *key, status))
    return plan


def read_spec(service: ObjectView) -> tuple[ServiceSpec | None, str]:
    """Return a service's spec, or None and what is wrong with it."""
    if len(service.id.name) > MAX_SERVICE_NAME:
        return None, f"metadata.name: must have at most {MAX_SERVICE_NAME} characters"
    try:
        return ServiceSpec.model_validate(service.body.get("spec") or {}), ""
    except ValidationError as error:
        return None, "; ".join(faults(error))


def _claims(key: Key, world: World) -> tuple[list[NodeView], dict[str, Key]]:
    """Return the nodes of a service, and those that it selects but another has: whose they are.

    The oldest service that selects a node has it. One whose spec cannot be read keeps the nodes
    where it runs.
    """
    running = world.pods_on_nodes()
    holders: dict[str, Key] = {}
    wanted: list[NodeView] = []
    for other in sorted(world.services.values(), key=_age):
        if other.id.deleting:
            continue
        spec, _ = read_spec(other)
        for node in world.nodes.values():
            name = node.id.name
            selects = (
                name in running.get(other.id.key, ())
                if spec is None
                else spec.node_selector.items() <= node.id.labels.items()
            )
            if selects:
                holders.setdefault(name, other.id.key)
                if other.id.key == key:
                    wanted.append(node)
    mine = [node for node in wanted if holders[node.id.name] == key]
    conflicts = {n.id.name: holders[n.id.name] for n in wanted if holders[n.id.name] != key}
    return sorted(mine, key=lambda n: n.id.name), conflicts


def _age(service: ObjectView) -> tuple[str, Key]:
    return service.body["metadata"].get("creationTimestamp", ""), service.id.key


def _plan_nodes(
    plan: Plan, inputs: Sequence[NodeInput], key: Key, world: World, now: datetime
) -> None:
    if not inputs:
        plan.actions.extend(_leftovers(key, set(), world))
        return
    out = sum(counts_as_out(n) for n in inputs)
    budget = Budget(inputs[0].context.spec.update.max_unavailable - out)
    for n in inputs:
        node_plan = plan_node(n, budget, now)
        plan.nodes[n.node.id.name] = node_plan
        plan.actions.extend(node_plan.actions)
    plan.actions.extend(_leftovers(key, {n.node.id.name for n in inputs}, world))


def _inputs(
    service: ObjectView,
    spec: ServiceSpec,
    mine: Iterable[NodeView],
    world: World,
    defaults: ServiceImages,
) -> Iterable[NodeInput]:
    key = service.id.key
    images, wanted_profile = images_of(spec, defaults), model_key(spec)
    pods = {pod.id.node: pod for pod in world.pods_of(key, names.NODE_COMPONENT)}
    job_pods: dict[str, list[Any]] = {}
    for pod in world.pods_of(key, names.PROFILER_COMPONENT):
        job_pods.setdefault(pod.id.node, []).append(pod)
    jobs, configs = world.jobs_of(key), world.configs_of(key)
    for node in mine:
        name = node.id.name
        yield NodeInput(
            context=PodContext(
                namespace=key[0],
                service=key[1],
                owner_uid=service.id.uid,
                node=name,
                node_uid=node.id.uid,
                spec=spec,
                images=images,
            ),
            node=node,
            pod=pods.get(name),
            drifting=name in pods and pods[name].id.uid in world.drifting,
            jobs=tuple(jobs.get(name, ())),
            job_pods=tuple(job_pods.get(name, ())),
            profile=world.profiles.get(("", names.profile_name(name, wanted_profile))),
            config=configs.get(name),
        )


def _leftovers(key: Key, mine: set[str], world: World) -> Iterable[Action]:
    """Yield deletions of what belongs to nodes that the service does not have any more."""
    existing = {node.id.name for node in world.nodes.values()}
    for kind in ("Job", "Pod", "ConfigMap"):
        for view in world.views[kind].values():
            if view.id.service != key or view.id.node in mine:
                continue
            of_job = kind == "Pod" and _component(view.id.labels) == names.PROFILER_COMPONENT
            gone = view.id.node not in existing
            if (view.id.deleting and not gone) or (of_job and not gone):
                continue
            force = gone and kind == "Pod"
            yield Delete(kind, view.id.namespace, view.id.name, view.id.uid, force)


def _component(labels: Mapping[str, str]) -> str:
    return labels.get(names.COMPONENT_LABEL, "")


def _kubernetes_service(service: ObjectView) -> dict[str, Any]:
    """Return the Service before the gateways of all nodes."""
    name = service.id.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": service.id.namespace,
            "labels": names.labels(name, names.NODE_COMPONENT),
            "ownerReferences": [owner(name, service.id.uid)],
        },
        "spec": {
            "selector": {
                names.SERVICE_LABEL: name,
                names.COMPONENT_LABEL: names.NODE_COMPONENT,
            },
            "ports": [
                {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"},
            ],
        },
    }
