"""helm, found in PATH or where `.ci/kubernetes-tools` puts it."""

import os
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "helm" / "dualpace"
CRD_CHART = REPOSITORY / "helm" / "dualpace-crds"


def find(name: str) -> str | None:
    beside = REPOSITORY / "build" / "tools" / name
    return str(beside) if beside.exists() else shutil.which(name)


def helm(*arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = find("helm")
    assert program is not None
    environ = dict(os.environ)
    if kubeconfig is not None:
        environ["KUBECONFIG"] = str(kubeconfig)
    return subprocess.run(
        [program, *arguments], env=environ, capture_output=True, text=True, check=False
    )
