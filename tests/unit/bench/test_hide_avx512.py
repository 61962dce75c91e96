"""A twin of an environment answers cpuid as a processor without AVX-512 would."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "bench/cpu/peers/hide_avx512.py"
LIBRARY = """
#include <cpuid.h>
void ask(unsigned leaf, unsigned subleaf, unsigned *answer) {
    __cpuid_count(leaf, subleaf, answer[0], answer[1], answer[2], answer[3]);
}
"""
ASK = """
import ctypes, json, sys
answer = (ctypes.c_uint * 4)()
answers = []
for leaf, subleaf in json.loads(sys.argv[2]):
    ctypes.CDLL(sys.argv[1]).ask(leaf, subleaf, answer)
    answers.append(list(answer))
print(json.dumps(answers))
"""
LEAVES = ((0, 0), (7, 0), (7, 1), (0x80000002, 0))
AVX2, AVX512F, AVX512BW = 1 << 5, 1 << 16, 1 << 30

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not (shutil.which("cc") and shutil.which("objdump")),
    reason="needs an x86-64 processor, a C compiler and objdump",
)


def answers_of(library: Path, **variables: str) -> list[list[int]]:
    """Return eax, ebx, ecx and edx of each leaf, as code in the library sees them."""
    result = subprocess.run(
        [sys.executable, "-c", ASK, library, json.dumps(LEAVES)],
        check=True,
        capture_output=True,
        text=True,
        env=dict(os.environ) | variables,
    )
    answers: list[list[int]] = json.loads(result.stdout)
    return answers


def test_a_twin_lacks_what_is_newer_than_avx2_and_nothing_else(tmp_path: Path) -> None:
    original, twin = tmp_path / "peer", tmp_path / "peer-avx2"
    packages = Path("lib/python3/site-packages")
    (original / packages).mkdir(parents=True)
    (tmp_path / "ask.c").write_text(LIBRARY)
    library = original / packages / "ask.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, tmp_path / "ask.c"], check=True)
    content = library.read_bytes()
    subprocess.run([sys.executable, SCRIPT, original, twin, "ask.so"], check=True)
    assert library.read_bytes() == content
    before = answers_of(library)
    after = answers_of(twin / packages / "ask.so", LD_PRELOAD=str(twin / "hide_avx512.so"))
    assert (twin / "ready").exists()
    assert after[0] == before[0]
    assert after[3] == before[3]
    assert after[1][1] & (AVX512F | AVX512BW) == 0
    assert after[1][1] & AVX2 == before[1][1] & AVX2
    assert after[1][1] | before[1][1] == before[1][1]
    assert after[2][0] == 0
