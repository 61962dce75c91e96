"""NodeProfiles as the plan sees them: from a report to an object, and from an object to facts."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from dualpace.core.errors import ProfileError
from dualpace.operator import names
from dualpace.operator.conditions import Finding, compact, conditions, timestamp
from dualpace.operator.model import API_VERSION
from dualpace.operator.model.base import faults
from dualpace.operator.model.profile import Fingerprint, ProfileSpec
from dualpace.operator.model.quantity import parse_duration
from dualpace.operator.model.service import ServiceSpec
from dualpace.operator.observed import JobView, NodeView, ObjectView
from dualpace.operator.report import Report, read_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A NodeProfile of this very node: either a spec that can be used, or what is wrong with it."""

    view: ObjectView
    spec: ProfileSpec | None
    fault: str = ""

    @property
    def as_measured(self) -> bool:
        """Whether nobody edited the thresholds."""
        thresholds = self.view.body["spec"].get("thresholds") or []
        measured = self.view.id.annotations.get(names.THRESHOLDS_ANNOTATION)
        return thresholds_digest(thresholds) == measured


def thresholds_digest(thresholds: list[dict[str, Any]]) -> str:
    """Return what changes when a threshold's value, or the set of them, does."""
    return names.digest(sorted((t.get("name", ""), float(t.get("value", 0))) for t in thresholds))


def read_profile(view: ObjectView | None, node: NodeView) -> Profile | None:
    """Return a node's profile, or None: there is none, or it is of another node of that name.

    One without an owner was made by hand, and is taken as it is.
    """
    if view is None or view.id.deleting or view.owner_uid not in ("", node.id.uid):
        return None
    try:
        spec = ProfileSpec.model_validate(view.body.get("spec"))
        read_document(spec.document)
        if spec.node_name != node.id.name:
            return Profile(view=view, spec=None, fault="spec.nodeName: not the node that owns it")
    except ValidationError as error:
        return Profile(view=view, spec=None, fault="; ".join(faults(error)))
    except ProfileError as error:
        return Profile(view=view, spec=None, fault=f"spec.document: {error}")
    return Profile(view=view, spec=spec)


def profile_object(
    node: NodeView, key: str, report: Report, job: JobView, fingerprint: Fingerprint
) -> dict[str, Any]:
    """Return the NodeProfile that a finished Job's report becomes."""
    assert job.finished is not None
    thresholds = [t.model_dump(mode="json", by_alias=True) for t in report.thresholds]
    request = job.id.annotations.get(names.REQUEST_ANNOTATION, "")
    spec: dict[str, Any] = {
        "nodeName": node.id.name,
        "modelKey": key,
        "gpu": report.gpu,
        "host": report.host,
        "fingerprint": fingerprint.model_dump(mode="json", by_alias=True),
        "thresholds": thresholds,
        "document": report.document,
        "provenance": {
            "origin": report.origin,
            "measuredAt": timestamp(job.finished),
            "job": job.id.uid,
            "request": request,
            "drift": job.id.annotations.get(names.DRIFT_ANNOTATION, ""),
        },
    }
    if report.topology is not None:
        spec["topology"] = report.topology.model_dump(mode="json", by_alias=True)
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeProfile",
        "metadata": {
            "name": names.profile_name(node.id.name, key),
            "labels": {
                "app.kubernetes.io/name": "dualpace",
                "app.kubernetes.io/managed-by": names.FIELD_MANAGER,
                names.NODE_KEY_LABEL: names.node_key(node.id.name),
            },
            "annotations": {names.THRESHOLDS_ANNOTATION: thresholds_digest(thresholds)},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node.id.name, "uid": node.id.uid}
            ],
        },
        "spec": compact(spec),
    }


def effective_document(spec: ProfileSpec) -> str:
    """Return the document that engines read: as measured, with the thresholds that are in force."""
    document = json.loads(spec.document)
    document["thresholds"] = [t.model_dump(mode="json") for t in spec.thresholds]
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def outdated_reason(
    profile: Profile, service: ServiceSpec, current: Fingerprint, now: datetime
) -> tuple[str, str] | None:
    """Return reason and message if a profile should be measured again, or None."""
    if profile.spec is None:
        return "Invalid", profile.fault
    request = profile.view.id.annotations.get(names.REQUEST_ANNOTATION, "")
    if request and request != profile.spec.provenance.request:
        return "Requested", f"annotation {names.REQUEST_ANNOTATION} asks for it"
    drift = profile.view.id.annotations.get(names.DRIFT_ANNOTATION, "")
    if drift and drift != profile.spec.provenance.drift:
        return "Drifted", f"the engines of pod {drift} see other times"
    changes = profile.spec.fingerprint.differences(current)
    if changes:
        return "Outdated", "changed since it was measured: " + "; ".join(changes)
    if now - profile.spec.measured_at > timedelta(
        seconds=parse_duration(service.profiling.max_age)
    ):
        return "Expired", f"older than {service.profiling.max_age}"
    return None


def profile_status(
    profile: Profile, outdated: tuple[str, str] | None, failure: str, now: datetime
) -> dict[str, Any]:
    """Return a NodeProfile's status. `failure` says how the last attempt to renew it failed."""
    valid = profile.spec is not None
    measured = profile.as_measured
    findings = [
        Finding("Valid", valid, "Accepted" if valid else "Invalid", profile.fault),
        Finding("Current", outdated is None, *(outdated or ("Current", ""))),
        Finding(
            "AsMeasured",
            measured,
            "AsMeasured" if measured else "EditedByHand",
            "" if measured else "thresholds were edited; they are in force until the next profile",
        ),
        Finding("Renewable", not failure, "JobFailed" if failure else "NoFailure", failure),
    ]
    worst = next((f for f in findings if not f.status), None)
    ready = Finding(
        "Ready",
        valid,
        "InForce" if worst is None else worst.reason,
        "" if worst is None else worst.message,
    )
    previous = profile.view.body.get("status") or {}
    generation = profile.view.generation
    told = conditions([ready, *findings], previous.get("conditions") or (), generation, now)
    return {"observedGeneration": generation, "conditions": compact(told)}
