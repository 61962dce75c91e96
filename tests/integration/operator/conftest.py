"""One control plane with the charts installed, for all tests here."""

from collections.abc import Iterator

import pytest

from tests.cluster import control_plane as kubernetes
from tests.cluster.control_plane import ControlPlane
from tests.cluster.tools import CHART, CRD_CHART, find, helm


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    lacking = kubernetes.missing() or ("no helm" if find("helm") is None else None)
    if lacking is not None:
        pytest.skip(lacking)
    with kubernetes.control_plane(install) as running:
        yield running


def install(plane: ControlPlane) -> None:
    for name, chart in (("dualpace-crds", CRD_CHART), ("dualpace", CHART)):
        result = helm(
            "install",
            name,
            str(chart),
            "--namespace=dualpace-system",
            "--create-namespace",
            # Servers before 1.25 do not know CEL rules, and drop them.
            "--disable-openapi-validation",
            kubeconfig=plane.admin_kubeconfig,
        )
        assert result.returncode == 0, result.stderr
