"""The operator on a real API server and real controllers, with the rights that the chart gives it.

Kubelets and scheduler are played by the tests; 1.20 has no CEL, so rules across fields surface as
conditions.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualpace.operator import names
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelets, make_node, report
from tests.cluster.operator_process import OperatorProcess
from tests.cluster.story import PROFILES, Story, profiles_of, until
from tests.cluster.tools import find
from tests.e2e.many_nodes import measure

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def kubelets(plane: ControlPlane) -> Iterator[Kubelets]:
    with Kubelets(plane) as running:
        yield running


@pytest.fixture(scope="module")
def operator(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    log = tmp_path_factory.mktemp("operator") / "log"
    process = OperatorProcess(plane, log)
    yield log
    assert process.stop() == 0


def nodes(plane: ControlPlane, pool: str, count: int) -> list[str]:
    made = [f"{pool}-{i}" for i in range(count)]
    for name in made:
        make_node(plane, name, {"pool": pool})
    return made


def test_a_service_lives(plane: ControlPlane, kubelets: Kubelets, operator: Path) -> None:
    names_of = nodes(plane, "life", 2)
    story = Story(plane, "life")
    story.create({"pool": "life"})
    story.settled(2)

    # Each node was measured; its pod has whole cores: 32 CPUs less gateway, gpu-engine, reserve.
    pods = story.pods()
    limits = {c["name"]: c["resources"]["limits"] for c in pods[0]["spec"]["containers"]}
    assert {name: limit["cpu"] for name, limit in limits.items()} == {
        "gateway": "2",
        "gpu-engine": "4",
        "cpu-engine": "24",
    }
    assert limits["gpu-engine"]["nvidia.com/gpu"] == "1"
    assert all(pod["status"]["qosClass"] == "Guaranteed" for pod in pods)
    assert "--threads=11" in pods[0]["spec"]["containers"][2]["args"]  # 12 cores, one left
    assert [len(profiles_of(plane, name)) for name in names_of] == [1, 1]
    assert story.condition("Profiled")["status"] == "True"

    # Thresholds change where they are mounted; no pod restarts.
    before = story.pod_uids()
    profile = profiles_of(plane, "life-0")[0]
    thresholds = [{**profile["spec"]["thresholds"][0], "value": 99}]
    path = f"{PROFILES}/{profile['metadata']['name']}"
    plane.merge(path, {"spec": {"thresholds": thresholds}})

    def in_force(node: str) -> float:
        document = json.loads(story.configs()[node]["profile.json"])
        return float(document["thresholds"][0]["value"])

    until("the edited threshold is in force", lambda: in_force("life-0") == 99)
    assert in_force("life-1") == 24
    until(
        "the status says so",
        lambda: (
            "EditedByHand"
            in {c["reason"] for c in plane.request("GET", path)["status"]["conditions"]}
        ),
    )
    assert story.pod_uids() == before

    # Pinning replaces the pods one by one.
    story.patch({"pinning": {"reservedCpus": 8}})
    fewest = 2

    def replaced() -> bool:
        nonlocal fewest
        fewest = min(fewest, story.ready_pods())
        return not story.pod_uids() & before and story.status().get("nodes", {}).get("ready") == 2

    until("both pods are replaced", replaced)
    assert fewest >= 1
    cpus = {p["spec"]["containers"][2]["resources"]["limits"]["cpu"] for p in story.pods()}
    assert cpus == {"18"}

    # A request for a new measurement goes through a Job, and back to serving.
    kubelets.reports = lambda node: report(assist_rows=7)
    plane.merge(path, {"metadata": {"annotations": {names.REQUEST_ANNOTATION: "now"}}})
    until("the new threshold is in force", lambda: in_force("life-0") == 7)
    kubelets.reports = lambda node: report()
    story.settled(2)

    kubectl = find("kubectl")
    assert kubectl is not None
    table = subprocess.run(
        [kubectl, f"--kubeconfig={plane.admin_kubeconfig}", "get", "dps,nodeprofiles", "-A"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    row = next(line for line in table.splitlines() if line.startswith("life "))
    assert row.split()[2:6] == ["True", "2/2", "2", "AllNodesServe"]
    assert sum("life-" in line and "InForce" in line for line in table.splitlines()) == 2

    story.delete()
    assert len(profiles_of(plane, "life-0")) == 1  # a fact of the node, not of the service
    for name in names_of:
        plane.request("DELETE", f"/api/v1/nodes/{name}")
    until("profiles go with their nodes", lambda: not profiles_of(plane, "life-0"))


def test_nodes_come_go_and_change(plane: ControlPlane, kubelets: Kubelets, operator: Path) -> None:
    nodes(plane, "move", 2)
    story = Story(plane, "move")
    story.create({"pool": "move"})
    story.settled(2)

    plane.merge("/api/v1/nodes/move-0", {"metadata": {"labels": {"pool": None}}})
    until("one pod is left", lambda: len(story.pods()) == 1)
    story.settled(1)
    assert set(story.configs()) == {"move-1"}

    old = profiles_of(plane, "move-1")[0]["metadata"]["uid"]
    plane.request("DELETE", "/api/v1/nodes/move-1")
    make_node(plane, "move-1", {"pool": "move"}, cpus="16")

    def renewed() -> bool:
        found = profiles_of(plane, "move-1")
        pods = story.pods()
        return (
            len(found) == 1
            and found[0]["metadata"]["uid"] != old
            and len(pods) == 1
            and pods[0]["spec"]["containers"][2]["resources"]["limits"]["cpu"] == "8"
        )

    until("the replacement is measured and planned anew", renewed)
    story.settled(1)
    story.delete()


def test_two_services_on_one_node(plane: ControlPlane, kubelets: Kubelets, operator: Path) -> None:
    nodes(plane, "both", 1)
    first, second = Story(plane, "both-1"), Story(plane, "both-2")
    first.create({"pool": "both"})
    first.settled(1)
    second.create({"pool": "both"})
    until("the younger says why", lambda: second.condition("NodesClaimed").get("status") == "False")
    assert "both-1/chat selects this node too" in second.condition("NodesClaimed")["message"]
    assert second.pods() == []
    first.delete()
    second.settled(1)
    second.delete()


def test_faulty_specs_are_refused_or_told(
    plane: ControlPlane, kubelets: Kubelets, operator: Path
) -> None:
    nodes(plane, "bad", 1)
    story = Story(plane, "bad")
    with pytest.raises(RuntimeError, match=r"spec\.arena\.size in body should match"):
        story.create({"pool": "bad"}, arena={"size": "lots"})
    with pytest.raises(RuntimeError, match=r"spec\.dtype: Unsupported value"):
        story.create({"pool": "bad"}, dtype="int3")
    story.create({"pool": "bad"})
    story.settled(1)
    running = story.pod_uids()
    # No field of its own is wrong: without CEL only the operator can tell.
    plane.merge(story.path, {"spec": {"model": {"hub": {"repository": "org/name"}}}})
    until("the condition", lambda: story.condition("Valid").get("status") == "False")
    assert story.condition("Ready")["message"] == (
        "spec.model: exactly one of claim, image and hub must be set"
    )
    assert story.pod_uids() == running
    story.delete()


def test_a_failed_measurement_leaves_the_last_profile_in_force(
    plane: ControlPlane, kubelets: Kubelets, operator: Path
) -> None:
    nodes(plane, "fail", 1)
    story = Story(plane, "fail")
    story.create({"pool": "fail"})
    story.settled(1)
    good = story.configs()["fail-0"]["profile.json"]
    kubelets.reports = lambda node: "!CUDA error: out of memory"
    path = f"{PROFILES}/{profiles_of(plane, 'fail-0')[0]['metadata']['name']}"
    plane.merge(path, {"metadata": {"annotations": {names.REQUEST_ANNOTATION: "1"}}})
    until("it says so", lambda: story.condition("Profiled").get("reason") == "ProfileFailed")
    assert "CUDA error: out of memory" in story.condition("Profiled")["message"]
    until("it serves again", lambda: story.status()["nodes"]["ready"] == 1)
    assert story.configs()["fail-0"]["profile.json"] == good
    kubelets.reports = lambda node: report()
    story.delete()


def test_idle_nodes_cost_no_requests(
    plane: ControlPlane, kubelets: Kubelets, tmp_path: Path
) -> None:
    """Those of this module's other operator, which sees the nodes too, are counted as well."""
    cost = measure(plane, 10, idle_s=3.0, log=tmp_path / "log")
    assert cost.idle_writes == 0
    assert cost.rss_mib < 300


def test_a_restarted_api_server_is_followed(
    plane: ControlPlane, kubelets: Kubelets, operator: Path
) -> None:
    nodes(plane, "again", 1)
    story = Story(plane, "again")
    story.create({"pool": "again"})
    story.settled(1)
    before = story.pod_uids()
    # All that came before went with the chart's rights; a starting server refuses at first.
    assert "forbidden" not in operator.read_text()
    plane.restart_apiserver()
    story.patch({"gateway": {"memory": "3Gi"}})
    until("the pod is replaced", lambda: story.pods() and not story.pod_uids() & before, 60)
    story.settled(1)
    story.delete()


def test_the_operator_killed_anywhere_converges_to_the_same(
    plane: ControlPlane, kubelets: Kubelets, operator: Path, tmp_path: Path
) -> None:
    """A second operator, killed again and again, beside the first: the harder case."""
    nodes(plane, "kill", 3)
    story = Story(plane, "kill")
    log = tmp_path / "killed"
    story.create({"pool": "kill"})
    for _ in range(2):
        OperatorProcess(plane, log).kill()
    story.settled(3)
    assert len(story.owned()) == 3 + 3 + 1  # pods, ConfigMaps, Service
    story.delete()
