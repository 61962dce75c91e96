"""One process, one OpenMP runtime: whatever is imported first, and whatever its file is called."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dualpace.kernels import capabilities

REPORT = """
import re, sys
mapped = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps")
          if re.search(r"/lib(g|i)?omp[^/]*\\.so", line)}
from dualpace.kernels import capabilities
print(*sorted(mapped))
print(capabilities().openmp_runtime)
"""

USE_KERNELS = """
import numpy as np
from dualpace.kernels import stream_read
assert stream_read(np.arange(1000), num_threads=2) == 499500
"""

USE_TORCH = """
import torch
assert torch.ones(1_000_000).sum().item() == 1_000_000
"""

HIDE_TORCH = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "torch" else find_spec(name, *a)
"""


def mapped_runtimes(program: str, path: str = "") -> tuple[list[Path], Path]:
    """Run a program and return the runtimes that it mapped, and the one that the kernels call."""
    environment = dict(os.environ)
    if path:
        environment["PYTHONPATH"] = os.pathsep.join([path, environment.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", program + REPORT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    mapped, used = result.stdout.splitlines()
    return [Path(file).resolve() for file in mapped.split()], Path(used).resolve()


@pytest.mark.parametrize(
    "program",
    [USE_TORCH + USE_KERNELS, USE_KERNELS + USE_TORCH, HIDE_TORCH + USE_KERNELS + USE_TORCH],
    ids=["torch first", "kernels first", "kernels first, with the system's runtime"],
)
def test_kernels_and_torch_share_one_runtime(program: str) -> None:
    mapped, used = mapped_runtimes(program)
    assert mapped == [used]


def test_torch_s_runtime_is_used_but_torch_is_not_imported() -> None:
    program = USE_KERNELS + "\nimport sys\nassert 'torch' not in sys.modules\n"
    mapped, used = mapped_runtimes(program)
    assert mapped == [used]
    assert used.parent == Path(torch.__file__).parent / "lib"


def test_a_runtime_under_a_hashed_name_is_found(tmp_path: Path) -> None:
    """Some of PyTorch's wheels bring libgomp-HASH.so.1."""
    library = tmp_path / "torch" / "lib" / "libgomp-0a1b2c3d.so.1"
    library.parent.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    shutil.copy(capabilities().openmp_runtime, library)
    mapped, used = mapped_runtimes(USE_KERNELS, path=str(tmp_path))
    assert mapped == [library]
    assert used == library


def test_without_any_runtime_the_import_says_what_to_install(tmp_path: Path) -> None:
    broken = tmp_path / "torch" / "lib" / "libgomp-0a1b2c3d.so.1"
    broken.parent.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    broken.write_bytes(b"no library")
    result = subprocess.run(
        [sys.executable, "-c", "import dualpace.kernels"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 1
    assert "ImportError: the GNU OpenMP runtime is needed and was not found" in result.stderr
    assert "install libgomp.so.1" in result.stderr


def test_the_thread_count_is_the_runtime_s() -> None:
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from dualpace.kernels import capabilities; print(capabilities().openmp_threads)",
        ],
        env=os.environ | {"OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert result.stdout == "3\n"
