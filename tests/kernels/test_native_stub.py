"""The committed stub is what the built module says about itself."""

import subprocess
import sys
from pathlib import Path

import dualpace.kernels

COMMITTED = Path(dualpace.kernels.__file__).with_name("_native.pyi")


def test_the_committed_stub_is_the_module_s(tmp_path: Path) -> None:
    stub = tmp_path / "_native.pyi"
    for command in (
        ["nanobind.stubgen", "-q", "-m", "dualpace.kernels._native", "-o", str(stub)],
        ["ruff", "format", "--quiet", "--config", "line-length = 100", str(stub)],
    ):
        subprocess.run([sys.executable, "-m", *command], check=True, timeout=120)
    assert COMMITTED.read_text() == stub.read_text()
