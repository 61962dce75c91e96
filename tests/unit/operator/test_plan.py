"""Plans: whatever happens in whatever order, they converge, and take out no more than allowed."""

import json
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dualpace.operator import names
from dualpace.operator.actions import Create, Delete
from dualpace.operator.images import ServiceImages
from dualpace.operator.plan import Plan
from tests.cluster.kubelet import report
from tests.unit.operator.fake_cluster import IMAGES, KEY, SPEC, FakeCluster

NODES = ("n0", "n1", "n2")


def make_cluster(nodes: int = 2, **spec: object) -> FakeCluster:
    cluster = FakeCluster()
    for name in NODES[:nodes]:
        cluster.add_node(name)
    cluster.add_service({**SPEC, **spec})
    return cluster


def profile_of(cluster: FakeCluster, node: str = "n0") -> dict[str, object]:
    return next(p for p in cluster.all("NodeProfile") if p["spec"]["nodeName"] == node)


def findings(cluster: FakeCluster) -> dict[str, tuple[str, str]]:
    status = cluster.get("DualPaceService", "chat", "llm")["status"]
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def deleted_pods(plan: Plan) -> list[str]:
    return [a.name for a in plan.actions if isinstance(a, Delete) and a.kind == "Pod"]


def test_a_node_is_measured_before_it_serves() -> None:
    cluster = make_cluster(1)
    created = [a.manifest["kind"] for a in cluster.plan().actions if isinstance(a, Create)]
    assert created == ["Job"]
    cluster.settle()
    assert cluster.all("Job") == []
    assert len(cluster.all("Pod")) == 1
    assert findings(cluster)["Ready"] == ("True", "AllNodesServe")
    assert profile_of(cluster)["metadata"]["ownerReferences"][0]["kind"] == "Node"  # type: ignore[index]


def test_without_a_profiler_nodes_serve_at_once() -> None:
    cluster = make_cluster(1)
    images = ServiceImages(gateway="g:1", gpu_engine="u:1", cpu_engine="c:1")
    created = [
        a.manifest["kind"] for a in cluster.plan(images=images).actions if isinstance(a, Create)
    ]
    assert created == ["Pod"]


def test_a_settled_cluster_is_left_alone_for_ever() -> None:
    cluster = make_cluster()
    cluster.settle()
    for _ in range(3):
        cluster.now += timedelta(hours=1)
        assert cluster.plan().actions == []


def test_failed_measurements_are_tried_again_ever_less_often() -> None:
    cluster = make_cluster(1)
    cluster.report = "!boom"
    cluster.settle()
    assert findings(cluster)["Ready"] == ("True", "AllNodesServe")  # with built-in thresholds
    assert findings(cluster)["Profiled"] == ("False", "ProfileFailed")
    # Serving, it is measured only when the policy lets it.
    cluster.now += timedelta(days=1)
    cluster.settle()
    assert len(cluster.all("Job")) == 1
    cluster.get("DualPaceService", "chat", "llm")["spec"]["profiling"] = {"reprofile": "Anytime"}
    attempts = set()
    for _ in range(300):
        cluster.now += timedelta(minutes=1)
        cluster.reconcile()
        cluster.kubelets()
        attempts |= {j["metadata"]["name"][-3:] for j in cluster.all("Job")}
    assert attempts == {"-p1", "-p2", "-p3", "-p4", "-p5", "-p6"}  # 5 h of 10+20+40+80+160 min
    cluster.report = report()
    cluster.now += timedelta(hours=6)
    cluster.settle()
    assert findings(cluster)["Profiled"] == ("True", "AllProfiled")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("", "no JSON"),
        ("{}", "dualpace-profile-report/1"),
        (
            '{"format": "dualpace-profile-report/1", "profile": {"format": "x"}}',
            "dualpace-profile/1",
        ),
        ("gz:%%%", "decompressed"),
    ],
)
def test_a_report_that_is_none_is_a_failure(message: str, reason: str) -> None:
    cluster = make_cluster(1)
    cluster.report = message
    cluster.settle()
    status = cluster.get("DualPaceService", "chat", "llm")["status"]
    text = next(c["message"] for c in status["conditions"] if c["type"] == "Profiled")
    assert reason in text
    assert cluster.all("NodeProfile") == []


@pytest.mark.parametrize(
    ("policy", "hour", "measured"),
    [
        ({"reprofile": "OnRequest"}, 3, False),
        ({"reprofile": "Anytime"}, 12, True),
        ({"reprofile": "Window", "window": {"start": "02:00", "end": "04:00"}}, 12, False),
        ({"reprofile": "Window", "window": {"start": "02:00", "end": "04:00"}}, 3, True),
        ({"reprofile": "Window", "window": {"start": "23:00", "end": "04:00"}}, 3, True),
    ],
)
def test_a_changed_kernel_is_measured_when_the_policy_allows(
    policy: dict[str, object], hour: int, measured: bool
) -> None:
    cluster = make_cluster(1, profiling=policy)
    cluster.settle()
    cluster.get("Node", "n0")["status"]["nodeInfo"]["kernelVersion"] = "6.9"
    cluster.now = cluster.now.replace(hour=hour) + timedelta(days=1)
    cluster.settle()
    fingerprint = profile_of(cluster)["spec"]["fingerprint"]  # type: ignore[index]
    assert (fingerprint["kernel"] == "6.9") is measured
    conditions = {c["type"]: c for c in profile_of(cluster)["status"]["conditions"]}  # type: ignore[index]
    if not measured:
        assert "kernel: 6.1.0-1 → 6.9" in conditions["Current"]["message"]


def test_an_old_or_drifted_profile_is_renewed() -> None:
    for cause in ("age", "drift", "engines"):
        cluster = make_cluster(1, profiling={"reprofile": "Anytime", "maxAge": "24h"})
        cluster.settle()
        first = profile_of(cluster)["spec"]["provenance"]["job"]  # type: ignore[index]
        if cause == "age":
            cluster.now += timedelta(hours=25)
        elif cause == "engines":
            cluster.drifting = {cluster.all("Pod")[0]["metadata"]["uid"]}
        else:
            pod = cluster.all("Pod")[0]
            pod["metadata"]["annotations"][names.DRIFT_ANNOTATION] = (
                "cpu attention 1.6 times slower"
            )
        cluster.settle()
        assert profile_of(cluster)["spec"]["provenance"]["job"] != first, cause  # type: ignore[index]


def test_an_unusable_edit_of_a_profile_changes_no_threshold() -> None:
    cluster = make_cluster(1)
    cluster.settle()
    before = cluster.all("ConfigMap")[0]["data"]
    profile_of(cluster)["spec"]["document"] = "}"  # type: ignore[index]
    cluster.settle()
    assert cluster.all("ConfigMap")[0]["data"] == before
    conditions = {c["type"]: c for c in profile_of(cluster)["status"]["conditions"]}  # type: ignore[index]
    assert conditions["Ready"]["message"] == "spec.document: profile: not JSON"


def test_cordoned_and_small_nodes_are_told() -> None:
    cluster = make_cluster(2)
    cluster.get("Node", "n0")["spec"]["unschedulable"] = True
    cluster.get("Node", "n1")["status"]["allocatable"]["cpu"] = "7500m"
    cluster.settle()
    attention = cluster.get("DualPaceService", "chat", "llm")["status"]["attention"]
    assert [a["phase"] for a in attention] == ["Cordoned", "TooSmall"]
    assert "7 allocatable CPUs" in attention[1]["message"]
    assert cluster.all("Pod") == []


def test_paused_means_that_nothing_running_is_touched() -> None:
    cluster = make_cluster()
    cluster.settle()
    spec = cluster.get("DualPaceService", "chat", "llm")["spec"]
    spec |= {"update": {"paused": True}, "gateway": {"memory": "3Gi"}}
    cluster.settle()
    status = cluster.get("DualPaceService", "chat", "llm")["status"]
    assert status["nodes"]["outdated"] == 2
    cluster.delete("Pod", cluster.all("Pod")[0]["metadata"]["name"], "llm")
    cluster.settle()
    assert len(cluster.all("Pod")) == 2


def test_thresholds_reach_the_mounted_file_without_a_restart() -> None:
    cluster = make_cluster(1)
    cluster.settle()
    pods = [p["metadata"]["uid"] for p in cluster.all("Pod")]
    profile_of(cluster)["spec"]["thresholds"][0]["value"] = 3  # type: ignore[index]
    cluster.settle()
    data = cluster.all("ConfigMap")[0]["data"]
    assert json.loads(data["profile.json"])["thresholds"][0]["value"] == 3
    assert [p["metadata"]["uid"] for p in cluster.all("Pod")] == pods


def test_the_cpu_engine_is_told_of_a_profile_only_where_there_is_one() -> None:
    cluster = make_cluster(1, objectives={"itlMs": 50}, profiling={"reprofile": "Anytime"})
    cluster.report = "!boom"
    cluster.settle()
    flags = cluster.all("Pod", names.NODE_COMPONENT)[0]["spec"]["containers"][2]["args"]
    assert not [flag for flag in flags if "profile" in flag or "itl" in flag]
    cluster.report = report()
    cluster.now += timedelta(hours=6)
    cluster.settle()
    flags = cluster.all("Pod", names.NODE_COMPONENT)[0]["spec"]["containers"][2]["args"]
    assert "--profile=/etc/dualpace/profile/profile.json" in flags
    assert "--itl-target-ms=50" in flags


EVENTS = st.sampled_from(
    (
        "reconcile",
        "reconcile",
        "kubelet n0",
        "kubelet n1",
        "kubelet n2",
        "change template",
        "change kernel",
        "fail profiler",
        "mend profiler",
        "unlabel",
        "label",
        "remove node",
        "replace node",
        "evict",
        "break pod",
        "edit config",
        "delete profile",
        "request",
        "drift",
        "invalid spec",
        "valid spec",
        "hour",
    )
)


@settings(max_examples=60)
@given(
    events=st.lists(EVENTS, max_size=40),
    policy=st.sampled_from(("Anytime", "OnRequest")),
    limit=st.integers(1, 2),
    from_the_start=st.booleans(),
)
def test_any_history_converges_and_respects_the_budget(
    events: list[str], policy: str, limit: int, from_the_start: bool
) -> None:
    cluster = make_cluster(3, profiling={"reprofile": policy}, update={"maxUnavailable": limit})
    if not from_the_start:
        cluster.settle()
    for number, event in enumerate(events):
        happen(cluster, event, number)
        check_budget(cluster, cluster.plan(), limit)
    happen(cluster, "valid spec", 0)
    happen(cluster, "mend profiler", 0)
    cluster.settle(limit=200)
    selected = {
        n["metadata"]["name"]
        for n in cluster.all("Node")
        if n["metadata"]["labels"].get("pool") == "gpu"
    }
    pods = cluster.all("Pod", names.NODE_COMPONENT)
    assert sorted(p["metadata"]["annotations"][names.NODE_ANNOTATION] for p in pods) == sorted(
        selected
    )
    configs = cluster.all("ConfigMap")
    assert {c["metadata"]["annotations"][names.NODE_ANNOTATION] for c in configs} == selected
    uids = {n["metadata"]["uid"] for n in cluster.all("Node")}
    assert all(p["metadata"]["annotations"][names.NODE_UID_ANNOTATION] in uids for p in pods)
    assert cluster.plan().actions == []


def check_budget(cluster: FakeCluster, plan: Plan, limit: int) -> None:
    """Nodes that serve, and those that could but do not, by what the objects say alone."""
    nodes = {
        n["metadata"]["name"]: n["metadata"]["uid"]
        for n in cluster.all("Node")
        if n["metadata"]["labels"].get("pool") == "gpu"
    }
    profiled = {p["spec"]["nodeName"] for p in cluster.all("NodeProfile")}
    serving, out = {}, set(nodes) & profiled
    for pod in cluster.all("Pod", names.NODE_COMPONENT):
        meta = pod["metadata"]
        node = meta["annotations"][names.NODE_ANNOTATION]
        if nodes.get(node) != meta["annotations"][names.NODE_UID_ANNOTATION]:
            continue
        ready = bool(pod.get("status", {}).get("conditions")) and "deletionTimestamp" not in meta
        if ready and pod["status"]["phase"] == "Running":
            serving[meta["name"]] = node
            out.discard(node)
        else:
            out.add(node)
    taken = [name for name in deleted_pods(plan) if name in serving]
    assert len(taken) <= max(0, limit - len(out)), (taken, out)


def happen(cluster: FakeCluster, event: str, number: int) -> None:  # noqa: C901 - a table
    target = NODES[number % len(NODES)]
    node = cluster.objects.get(("Node", "", target))
    service = cluster.get("DualPaceService", "chat", "llm")
    pods = cluster.all("Pod", names.NODE_COMPONENT)
    match event.split():
        case ["reconcile"]:
            cluster.reconcile()
        case ["kubelet", name]:
            cluster.kubelets([name])
        case ["change", "template"]:
            service["spec"] = service["spec"] | {"gateway": {"memory": f"{number + 1}Gi"}}
        case ["change", "kernel"] if node is not None:
            node["status"]["nodeInfo"]["kernelVersion"] = f"6.{number}"
        case ["fail", _]:
            cluster.report = "!boom"
        case ["mend", _]:
            cluster.report = report()
        case ["unlabel"] if node is not None:
            node["metadata"]["labels"] = {}
        case ["label"] if node is not None:
            node["metadata"]["labels"] = {"pool": "gpu"}
        case ["remove", _]:
            cluster.delete("Node", target)
        case ["replace", _]:
            cluster.delete("Node", target)
            cluster.add_node(target)
        case ["evict"] if pods:
            pods[0]["status"] = {"phase": "Failed", "reason": "Evicted"}
        case ["break", _] if pods:
            pods[-1]["status"] = {"phase": "Running", "conditions": []}
            pods[-1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        case ["edit", _] if cluster.all("ConfigMap"):
            cluster.all("ConfigMap")[0]["data"] = {"profile.json": "by hand"}
        case ["delete", _] if cluster.all("NodeProfile"):
            cluster.delete("NodeProfile", cluster.all("NodeProfile")[0]["metadata"]["name"])
        case ["request"] if cluster.all("NodeProfile"):
            meta = cluster.all("NodeProfile")[0]["metadata"]
            meta["annotations"][names.REQUEST_ANNOTATION] = str(number)
        case ["drift"] if pods:
            pods[0]["metadata"]["annotations"][names.DRIFT_ANNOTATION] = "slower"
        case ["invalid", _]:
            service["spec"] = service["spec"] | {"model": {}}
        case ["valid", _]:
            service["spec"] = service["spec"] | {"model": SPEC["model"]}
        case ["hour"]:
            cluster.now += timedelta(hours=1)


def test_an_invalid_service_keeps_its_nodes_from_younger_ones() -> None:
    cluster = make_cluster(1)
    cluster.settle()
    cluster.get("DualPaceService", "chat", "llm")["spec"]["model"] = {}
    cluster.now += timedelta(minutes=1)
    cluster.add_service(name="other")
    cluster.settle()
    cluster.settle(("llm", "other"))
    assert len(cluster.all("Pod")) == 1
    other = cluster.get("DualPaceService", "other", "llm")["status"]
    assert other["attention"][0]["phase"] == "Conflict"


def test_a_deleted_service_is_the_garbage_collectors() -> None:
    cluster = make_cluster(1)
    cluster.settle()
    cluster.get("DualPaceService", "chat", "llm")["metadata"]["deletionTimestamp"] = "2026-01-01"
    assert cluster.plan().actions == []
    cluster.delete("DualPaceService", "chat", "llm")
    assert cluster.plan(KEY, IMAGES).actions == []
    assert cluster.all("Pod") == cluster.all("ConfigMap") == cluster.all("Service") == []
