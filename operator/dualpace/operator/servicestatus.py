"""The status of a DualPaceService: counts, conditions, and the nodes that need attention."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from dualpace.operator.conditions import Finding, conditions
from dualpace.operator.nodeplan import NodePlan, Phase
from dualpace.operator.observed import ObjectView

_MAX_ATTENTION = 20


def service_status(
    service: ObjectView,
    nodes: Mapping[str, NodePlan],
    *,
    fault: str,
    write_failure: str,
    profiling: bool,
    now: datetime,
) -> dict[str, Any]:
    """Return the status. `fault`: why the spec cannot be used; then `nodes` is empty."""
    if fault:
        return _faulty(service, fault, now)
    previous = service.body.get("status") or {}
    generation = service.generation
    mine = {name: plan for name, plan in nodes.items() if plan.phase is not Phase.CONFLICT}
    ready = sum(plan.phase is Phase.SERVING for plan in mine.values())
    findings = [
        _ready(mine, ready, write_failure),
        Finding("Valid", True, "Accepted"),
        _available(ready),
        _claimed(nodes),
        _profiled(mine, profiling=profiling),
        Finding("Applied", not write_failure, "Refused" if write_failure else "Applied",
                write_failure),
    ]  # fmt: skip
    return {
        "observedGeneration": generation,
        "conditions": conditions(findings, previous.get("conditions") or (), generation, now),
        "nodes": {
            "matched": len(mine),
            "ready": ready,
            "profiled": sum(plan.profiled for plan in mine.values()),
            "profiling": sum(plan.phase is Phase.PROFILING for plan in mine.values()),
            "outdated": sum(plan.outdated for plan in mine.values()),
        },
        "summary": f"{ready}/{len(mine)}",
        "attention": list(_attention(nodes))[:_MAX_ATTENTION],
    }


def _faulty(service: ObjectView, fault: str, now: datetime) -> dict[str, Any]:
    """Return the status of a spec that cannot be used: numbers stay as they were."""
    previous = service.body.get("status") or {}
    findings = [Finding(kind, False, "InvalidSpec", fault) for kind in ("Ready", "Valid")]
    told = conditions(findings, previous.get("conditions") or (), service.generation, now)
    return {**previous, "observedGeneration": service.generation, "conditions": told}


def _ready(mine: Mapping[str, NodePlan], ready: int, write_failure: str) -> Finding:
    if not mine:
        return Finding("Ready", False, "NoNodes", "no node has the labels of nodeSelector")
    if write_failure:
        return Finding("Ready", False, "Refused", write_failure)
    if ready == len(mine):
        return Finding("Ready", True, "AllNodesServe", f"{ready} of {len(mine)} nodes serve")
    phases = sorted({p.phase for p in mine.values() if p.phase is not Phase.SERVING})
    first = next((p.message for _, p in sorted(mine.items()) if p.phase is phases[-1]), "")
    text = f"{ready} of {len(mine)} nodes serve; others: {', '.join(phases)}"
    return Finding("Ready", False, phases[-1], f"{text}; {first}" if first else text)


def _available(ready: int) -> Finding:
    if ready:
        return Finding("Available", True, "SomeNodeServes")
    return Finding("Available", False, "NoNodeServes")


def _claimed(nodes: Mapping[str, NodePlan]) -> Finding:
    taken = {name: p.message for name, p in sorted(nodes.items()) if p.phase is Phase.CONFLICT}
    if not taken:
        return Finding("NodesClaimed", True, "NoConflict")
    name, message = next(iter(taken.items()))
    return Finding(
        "NodesClaimed", False, "Conflict", f"{len(taken)} nodes, such as {name}: {message}"
    )


def _profiled(mine: Mapping[str, NodePlan], *, profiling: bool) -> Finding:
    if not profiling:
        return Finding(
            "Profiled", None, "NotConfigured", "no profiler image; built-in thresholds are used"
        )
    if failed := {name: p.profile_failure for name, p in mine.items() if p.profile_failure}:
        name = min(failed)
        return Finding(
            "Profiled", False, "ProfileFailed", f"{len(failed)} nodes, such as {name}: "
            f"{failed[name]}; the last good profile, if any, stays in force",
        )  # fmt: skip
    missing = sorted(name for name, plan in mine.items() if not plan.profiled)
    if not missing:
        return Finding("Profiled", True, "AllProfiled")
    return Finding(
        "Profiled", False, "Unfinished", f"{len(missing)} nodes, such as {missing[0]}, have no"
        " current profile",
    )  # fmt: skip


def _attention(nodes: Mapping[str, NodePlan]) -> Iterator[dict[str, str]]:
    for name, plan in sorted(nodes.items()):
        message = plan.message or plan.profile_failure
        if plan.phase is not Phase.SERVING or message:
            yield {"node": name, "phase": plan.phase.value, "message": message[:512]}
