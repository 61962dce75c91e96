"""Upgrades of the charts, on a real API server: custom resources outlive them."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelets, make_node
from tests.cluster.operator_process import OperatorProcess
from tests.cluster.story import SERVICES, Story
from tests.cluster.tools import CHART, CRD_CHART, helm

pytestmark = pytest.mark.cluster


def earlier_charts(folder: Path) -> tuple[Path, Path]:
    """The charts as an earlier version could have been: without one field of a service's spec."""
    crds, chart = folder / "dualpace-crds", folder / "dualpace"
    for source, target in ((CRD_CHART, crds), (CHART, chart)):
        shutil.copytree(source, target)
        meta = yaml.safe_load((target / "Chart.yaml").read_text())
        (target / "Chart.yaml").write_text(yaml.safe_dump({**meta, "version": "0.0.1"}))
    file = crds / "templates" / "dualpaceservices.yaml"
    crd = yaml.safe_load(file.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["objectives"]
    file.write_text(yaml.safe_dump(crd))
    return crds, chart


def run(plane: ControlPlane, *arguments: str) -> None:
    space = "--namespace=dualpace-system"
    done = helm(*arguments, space, kubeconfig=plane.admin_kubeconfig)
    assert done.returncode == 0, done.stderr


def test_rights_in_some_namespaces_suffice_for_those(plane: ControlPlane, tmp_path: Path) -> None:
    story, other = Story(plane, "narrow"), Story(plane, "elsewhere")
    run(plane, "upgrade", "dualpace", str(CHART), "--set=operator.namespaces={narrow}")
    for pool in ("narrow", "elsewhere"):
        make_node(plane, pool, {"pool": pool})
    log = tmp_path / "log"
    operator = OperatorProcess(plane, log, "--namespaces=narrow")
    try:
        with Kubelets(plane):
            other.create({"pool": "elsewhere"})
            story.create({"pool": "narrow"})
            story.settled(1)
            assert other.status() == {}
            story.delete()
            other.delete()
    finally:
        operator.kill()
    assert "forbidden" not in log.read_text()
    run(plane, "upgrade", "dualpace", str(CHART))


def test_services_outlive_upgrades_and_uninstalling(plane: ControlPlane, tmp_path: Path) -> None:
    crds, chart = earlier_charts(tmp_path)
    relaxed = "--disable-openapi-validation"  # no CEL before Kubernetes 1.25
    run(plane, "upgrade", "dualpace-crds", str(crds), relaxed)
    run(plane, "upgrade", "dualpace", str(chart))
    story = Story(plane, "upgrade")
    story.create({"pool": "none"}, objectives={"itlMs": 500})
    uid = plane.request("GET", story.path)["metadata"]["uid"]
    assert "objectives" not in plane.request("GET", story.path)["spec"]

    run(plane, "upgrade", "dualpace-crds", str(CRD_CHART), relaxed)
    run(plane, "upgrade", "dualpace", str(CHART))
    body = plane.request("GET", story.path)
    assert body["metadata"]["uid"] == uid
    story.patch({"objectives": {"itlMs": 500}})
    assert plane.request("GET", story.path)["spec"]["objectives"] == {"itlMs": 500}

    run(plane, "uninstall", "dualpace")
    run(plane, "uninstall", "dualpace-crds")
    found = plane.items(SERVICES.format("upgrade"))
    assert [item["metadata"]["uid"] for item in found] == [uid]
    run(plane, "install", "dualpace-crds", str(CRD_CHART), relaxed)
    run(plane, "install", "dualpace", str(CHART))
    story.delete()
