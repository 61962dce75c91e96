"""The tile instructions themselves, emulated: what the compiler made of the intrinsics' code.

Everything that test_tiles.py asks of amxbf16, and decode steps on it, in a process in which an
emulator takes the place of the instructions that this processor lacks.
"""

import platform
import re
import shutil
import subprocess
import sys

import pytest

from dualpace.kernels import _native, capabilities

INSTRUCTIONS = {"ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored", "tdpbf16ps"}
NEEDED = "avx512bf16"


@pytest.mark.skipif("amxbf16" in capabilities().available, reason="this processor has tiles")
@pytest.mark.skipif(
    NEEDED not in capabilities().available, reason=f"the code around the tiles needs {NEEDED}"
)
@pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("g++")), reason="the emulator needs a C++ compiler"
)
def test_the_instructions_pass_the_tests_of_tiles() -> None:
    # Its own handler of illegal instructions would take the place of the emulator.
    plugins = ["tests.kernels.emulated_tiles", "no:cacheprovider", "no:faulthandler"]
    options = [part for plugin in plugins for part in ("-p", plugin)]
    files = ["tests/kernels/test_tiles.py", "tests/unit/models/test_native_step.py"]
    chosen = "amxbf16 and not portable"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, *files, "-k", chosen],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    emulated = re.search(r"emulated (\d+) tile instructions", result.stdout)
    assert emulated is not None
    assert int(emulated[1]) > 10_000
    assert "skipped" not in result.stdout


@pytest.mark.skipif(
    platform.machine() not in {"x86_64", "AMD64"}, reason="only x86-64 has the instructions"
)
@pytest.mark.skipif(not shutil.which("objdump"), reason="objdump is not installed")
def test_the_instructions_are_compiled_on_any_machine() -> None:
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(_native.__file__)]
    code = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert set(re.findall(r"\t(\w+)", code)) >= INSTRUCTIONS
