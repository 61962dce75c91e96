"""Processes whose images have neither torch nor native kernels must do without both."""

import subprocess
import sys

import pytest

LIGHT = ("dualpace.gateway.__main__", "dualpace.operator.__main__", "dualpace.cli.__main__",
         "dualpace.core.wait_closed")  # fmt: skip


@pytest.mark.parametrize("module", LIGHT)
def test_light_processes_import_nothing_heavy(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "print([m for m in ('torch', 'dualpace.kernels', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
