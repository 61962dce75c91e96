"""What to do about one node of a service. Pure: views and a time in, actions and a phase out.

The state is the cluster's, never ours: an unfinished Job means that the node is being measured, a
pod with another template that it is to be replaced, and so on. So a plan made after a crash at any
point goes on where the last one stopped.
"""

import enum
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pydantic import ValidationError

from dualpace.operator import names
from dualpace.operator.actions import Action, Annotate, Apply, Create, Delete, SetStatus
from dualpace.operator.cores import CorePlan, CoresError, plan_cores
from dualpace.operator.fingerprint import fingerprint, model_key
from dualpace.operator.job import profile_job
from dualpace.operator.model.profile import Fingerprint
from dualpace.operator.observed import JobView, NodeView, ObjectView, PodView, covers
from dualpace.operator.pod import PROFILE_FILE, PodContext, metadata, node_pod
from dualpace.operator.profiles import (
    effective_document,
    outdated_reason,
    profile_object,
    profile_status,
    read_profile,
)
from dualpace.operator.report import Report, ReportError, decode_report
from dualpace.operator.window import may_reprofile_now

_FIRST_RETRY = timedelta(minutes=5)
_LAST_RETRY = timedelta(hours=6)
_REPORT_GRACE = timedelta(seconds=30)
"""How long a finished Job's pod may stay unseen: the two are watched independently."""
_FREE_REASONS = frozenset({"FirstSight", "Outdated", "Requested", "Drifted", "Invalid"})
"""Why a node that serves nobody at the moment is measured before it does."""


class Phase(enum.StrEnum):
    """What a node is about."""

    SERVING = "Serving"
    STARTING = "Starting"
    PROFILING = "Profiling"
    STOPPING = "Stopping"
    CORDONED = "Cordoned"
    TOO_SMALL = "TooSmall"
    CONFLICT = "Conflict"
    TROUBLE = "Trouble"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInput:
    """Everything that concerns one node of one service."""

    context: PodContext
    node: NodeView
    pod: PodView | None
    drifting: bool
    """Whether the pod's engines want a new profile."""
    jobs: tuple[JobView, ...]
    job_pods: tuple[PodView, ...]
    profile: ObjectView | None
    config: ObjectView | None


@dataclass(slots=True)
class Budget:
    """How many serving nodes may still be taken out."""

    left: int

    def take(self) -> bool:
        """Take one, if there is one."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


@dataclass(slots=True, kw_only=True)
class NodePlan:
    """Actions for one node, and what to tell about it."""

    phase: Phase = Phase.STARTING
    message: str = ""
    actions: list[Action] = field(default_factory=list)
    profiled: bool = False
    profile_failure: str = ""
    outdated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """The latest Job: running, failed, or with a report."""

    job: JobView
    report: Report | None = None
    failure: str = ""

    @property
    def running(self) -> bool:
        return self.report is None and not self.failure

    def retry_at(self) -> datetime:
        assert self.job.finished is not None
        wait: timedelta = _FIRST_RETRY * (1 << min(self.job.attempt - 1, 10))
        return self.job.finished + min(wait, _LAST_RETRY)


def counts_as_out(n: NodeInput) -> bool:
    """Return whether a node that could serve does not: it uses up the budget."""
    if n.pod is None:
        return read_profile(n.profile, n.node) is not None
    return n.pod.id.deleting or not n.pod.ready


def plan_node(n: NodeInput, budget: Budget, now: datetime) -> NodePlan:
    """Decide about one node."""
    return _Planner(n, budget, now).plan()


class _Planner:
    """One decision; fields are what its steps share."""

    def __init__(self, n: NodeInput, budget: Budget, now: datetime) -> None:
        self.n, self.budget, self.now = n, budget, now
        self.spec = n.context.spec
        self.result = NodePlan()
        self.profile = read_profile(n.profile, n.node)
        self.fingerprint = fingerprint(self.spec, n.context.images, n.node)
        self.outdated = self._outdated()
        self.mounts_profile = False

    def plan(self) -> NodePlan:
        self._remove_foreign_profile()
        attempt = self._attempt()
        self._note_profile(attempt)
        self._apply_config()
        if self._remove_foreign_pod():
            return self.result
        try:
            topology = self.profile.spec.topology if self.profile and self.profile.spec else None
            cores = plan_cores(self.spec, self.n.node, topology)
        except CoresError as error:
            self._set(Phase.TOO_SMALL, str(error))
            return self.result
        if attempt is not None and attempt.running:
            trouble = next((p.trouble for p in self.n.job_pods if p.trouble), "")
            self._set(Phase.PROFILING, trouble or f"attempt {attempt.job.attempt}")
            self._stop_pod()
        elif attempt is None or attempt.report is None:
            if not self._start_profiling(attempt, cores):
                self._serve(cores)
        else:  # a report that is not in the NodeProfile yet
            self._set(Phase.PROFILING, "the result is being taken over")
        return self.result

    def _set(self, phase: Phase, message: str = "") -> None:
        self.result.phase, self.result.message = phase, message

    def _act(self, action: Action) -> None:
        self.result.actions.append(action)

    def _outdated(self) -> tuple[str, str] | None:
        """Why the node should be measured, or None."""
        if self.n.context.images.profiler is None:
            return None
        if self.profile is None:
            return "FirstSight", "not measured yet"
        return outdated_reason(self.profile, self.spec, self.fingerprint, self.now)

    def _remove_foreign_profile(self) -> None:
        """Delete the profile of an earlier node of this name: the collector may take its time."""
        view = self.n.profile
        if view is not None and self.profile is None and not view.id.deleting:
            self._act(Delete("NodeProfile", "", view.id.name, view.id.uid))

    def _remove_foreign_pod(self) -> bool:
        """Delete the pod of an earlier node of this name; no kubelet is left to confirm it."""
        pod = self.n.pod
        if pod is None or pod.id.annotations.get(names.NODE_UID_ANNOTATION) == self._uid:
            return False
        self._set(Phase.STOPPING, "its pod belonged to an earlier node of this name")
        self._act(Delete("Pod", *pod.id.key, pod.id.uid, force=True))
        return True

    def _attempt(self) -> _Attempt | None:
        """Return the latest attempt; older Jobs, and those whose result is taken over, go."""
        jobs = sorted(self.n.jobs, key=lambda j: j.attempt)
        jobs = [j for j in jobs if not j.id.deleting]
        current = [j for j in jobs if j.id.annotations.get(names.NODE_UID_ANNOTATION) == self._uid]
        latest = current[-1] if current else None
        taken = self.profile.spec.provenance.job if self.profile and self.profile.spec else None
        for job in jobs:
            if job is not latest or job.id.uid == taken:
                self._act(Delete("Job", *job.id.key, job.id.uid))
        if latest is None or latest.id.uid == taken:
            return None
        attempt = self._read(latest)
        if attempt.report is not None:
            key = model_key(self.spec)
            self._act(
                Apply(
                    profile_object(
                        self.n.node, key, attempt.report, latest, _fingerprint_of(latest)
                    )
                )
            )
        return attempt

    @property
    def _uid(self) -> str:
        return self.n.node.id.uid

    def _read(self, job: JobView) -> _Attempt:
        if job.finished is None:
            return _Attempt(job=job)
        pods = [p for p in self.n.job_pods if p.id.labels.get("job-name") == job.id.name]
        report = next((p.report for p in pods if p.report), "")
        if not job.succeeded:
            said = f"; it said: {report.strip()[:256]}" if report else ""
            return _Attempt(job=job, failure=f"attempt {job.attempt} failed: {job.reason}{said}")
        if not report and self.now - job.finished < _REPORT_GRACE:
            return _Attempt(job=job)
        try:
            return _Attempt(job=job, report=decode_report(report))
        except ReportError as error:
            return _Attempt(job=job, failure=f"attempt {job.attempt} is of no use: {error}")

    def _note_profile(self, attempt: _Attempt | None) -> None:
        failure = attempt.failure if attempt else ""
        self.result.profile_failure = failure
        self._note_drift()
        self.result.profiled = (
            self.profile is not None and self.profile.spec is not None and self.outdated is None
        )
        if self.profile is not None:
            status = profile_status(self.profile, self.outdated, failure, self.now)
            if status != self.profile.view.body.get("status"):
                self._act(SetStatus("NodeProfile", "", self.profile.view.id.name, status))

    def _note_drift(self) -> None:
        """Keep what a pod's engines report where it outlives the pod, which is taken out for it."""
        pod, profile = self.n.pod, self.profile
        if pod is None or profile is None:
            return
        if not self.n.drifting and names.DRIFT_ANNOTATION not in pod.id.annotations:
            return
        if profile.view.id.annotations.get(names.DRIFT_ANNOTATION) != pod.id.uid:
            name = profile.view.id.name
            self._act(Annotate("NodeProfile", "", name, names.DRIFT_ANNOTATION, pod.id.uid))

    def _apply_config(self) -> None:
        """Keep the profile that engines read; an unusable one changes nothing."""
        context, data = self.n.context, dict[str, str]()
        mounted = (self.n.config.body.get("data") or {}) if self.n.config is not None else {}
        if self.profile is not None and self.profile.spec is not None:
            data[PROFILE_FILE] = effective_document(self.profile.spec)
        elif PROFILE_FILE in mounted:
            data[PROFILE_FILE] = mounted[PROFILE_FILE]
        self.mounts_profile = PROFILE_FILE in data
        wanted = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(context, names.NODE_COMPONENT),
            "data": data,
        }
        if self.n.config is None or not covers(self.n.config.body, wanted):
            self._act(Apply(wanted))

    def _start_profiling(self, attempt: _Attempt | None, cores: CorePlan) -> bool:
        """Measure the node if it should and may be; returns whether that goes on."""
        if self.outdated is None or self.spec.update.paused or self.n.node.unschedulable:
            return False
        asked = self.profile.view.id.annotations if self.profile is not None else {}
        causes = {
            key: asked.get(key, "") for key in (names.REQUEST_ANNOTATION, names.DRIFT_ANNOTATION)
        }
        number = 1
        if attempt is not None:
            same = (
                _fingerprint_of(attempt.job) == self.fingerprint
                and causes.items() <= attempt.job.id.annotations.items()
            )
            if same and self.now < attempt.retry_at():
                return False
            number = attempt.job.attempt + 1
        if not self._may_profile(self.outdated[0], retry=attempt is not None):
            return False
        self._set(Phase.PROFILING, f"{self.outdated[0]}: {self.outdated[1]}")
        if self.n.pod is not None:
            self._stop_pod()
        else:
            self._act(
                Create(
                    profile_job(
                        self.n.context, cores, self.fingerprint, attempt=number, causes=causes
                    )
                )
            )
        return True

    def _may_profile(self, reason: str, *, retry: bool) -> bool:
        """Say whether the node may be without service for a measurement."""
        allowed = may_reprofile_now(
            self.spec.profiling, requested=reason == "Requested", now=self.now
        )
        pod = self.n.pod
        if pod is None:
            return allowed or (reason in _FREE_REASONS and not retry)
        if pod.id.deleting:
            return True  # it goes anyway; whether to measure is asked again once it is gone
        if not allowed:
            return False
        return not pod.ready or self.budget.take()

    def _stop_pod(self) -> None:
        pod = self.n.pod
        if pod is not None and not pod.id.deleting:
            self._act(Delete("Pod", *pod.id.key, pod.id.uid))

    def _serve(self, cores: CorePlan) -> None:
        """Have a pod with the right template on the node."""
        pod = self.n.pod
        wanted = node_pod(self.n.context, cores, profiled=self.mounts_profile)
        if pod is None:
            if self.n.node.unschedulable:
                self._set(Phase.CORDONED, "no pod is made while the node is cordoned")
            else:
                self._act(Create(wanted))
            return
        if pod.id.deleting:
            self._set(Phase.STOPPING)
        elif pod.phase in ("Failed", "Succeeded"):
            self._set(Phase.TROUBLE, pod.trouble or f"its pod has {pod.phase.lower()}")
            self._stop_pod()
        else:
            self._keep(pod, wanted["metadata"]["annotations"][names.TEMPLATE_ANNOTATION])

    def _keep(self, pod: PodView, template: str) -> None:
        self.result.outdated = pod.id.annotations.get(names.TEMPLATE_ANNOTATION) != template
        if self.result.outdated and not self.spec.update.paused:
            if not pod.ready or self.budget.take():
                self._set(Phase.STOPPING, "to be replaced")
                self._stop_pod()
                return
            self._set(Phase.SERVING, "waits to be replaced")
        elif pod.ready:
            self._set(Phase.SERVING)
        elif pod.trouble:
            self._set(Phase.TROUBLE, pod.trouble)


def _fingerprint_of(job: JobView) -> Fingerprint:
    """Return what a Job's measurement depends on, as noted when it was made."""
    text = job.id.annotations.get(names.FINGERPRINT_ANNOTATION, "")
    try:
        return Fingerprint.model_validate_json(text)
    except ValidationError:  # edited by hand: outdated at once, so it is measured again
        empty = dict.fromkeys(Fingerprint.model_fields, "")
        return Fingerprint(**empty)
