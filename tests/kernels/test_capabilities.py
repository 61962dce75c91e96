"""Which instruction set is used, and who decides: the machine, the cap, the call."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from dualpace.kernels import _native, capabilities, multiply_adds
from tests.kernels.calls import make_call

LEVELS = ["generic", "avx2", "avx512", "avx512vnni", "avx512bf16", "amxbf16"]
IS_X86 = platform.machine() in {"x86_64", "AMD64"}


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: v for name, v in os.environ.items() if name != "DUALPACE_MAX_ISA"}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_every_level_of_this_processor_family_is_compiled() -> None:
    assert capabilities().compiled == tuple(LEVELS if IS_X86 else LEVELS[:1])


@pytest.mark.skipif(not IS_X86, reason="only x86-64 has levels to detect")
def test_levels_are_those_that_the_operating_system_reports() -> None:
    """The flags of /proc/cpuinfo are what the kernel enabled, an independent reading of cpuid."""
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    needed = {
        "generic": set(),
        "avx2": {"avx2", "fma", "f16c"},
        "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
    }
    needed["avx512vnni"] = needed["avx512"] | {"avx512_vnni"}
    needed["avx512bf16"] = needed["avx512vnni"] | {"avx512_bf16"}
    needed["amxbf16"] = needed["avx512bf16"] | {"amx_tile", "amx_bf16"}
    expected = tuple(level for level in LEVELS if needed[level] <= flags)
    assert capabilities().available == expected


def used(allowed: list[str]) -> str:
    """The best of the levels, where it is not passed over; then the one below."""
    snapshot = capabilities()
    best = [level for level in snapshot.available if level in allowed]
    return best[-2] if best[-1] == snapshot.passed_over else best[-1]


def test_the_best_level_is_used_without_a_cap() -> None:
    result = run_python("from dualpace.kernels import capabilities as c; print(c().isa)")
    assert result.stdout == f"{used(LEVELS)}\n", result.stderr


def test_bfloat16_arithmetic_is_passed_over_where_whole_numbers_are_clearly_faster() -> None:
    """Measured again here, so that one reading is held against another."""
    snapshot = capabilities()
    if snapshot.available[-1] != "avx512bf16":
        assert snapshot.passed_over is None
        return

    def rate(arithmetic: str) -> float:
        start = perf_counter()
        done = multiply_adds(20_000, num_threads=1, arithmetic=arithmetic, isa="avx512bf16")
        return done / (perf_counter() - start)

    pairs, whole = (max(rate(name) for _ in range(9)) for name in ("bfloat16", "int16"))
    assert (snapshot.passed_over is None) == (whole < 1.5 * pairs)
    assert (snapshot.isa == "avx512bf16") == (snapshot.passed_over is None)
    if snapshot.passed_over is not None:
        assert "avx512bf16 passed over" in str(snapshot)


@pytest.mark.parametrize("cap", LEVELS)
def test_the_environment_caps_dispatch(cap: str) -> None:
    result = run_python(
        "from dualpace.kernels import capabilities as c; print(c().isa, c().max_isa); print(c())",
        DUALPACE_MAX_ISA=cap,
    )
    allowed = LEVELS[: LEVELS.index(cap) + 1]
    assert result.stdout.startswith(f"{used(allowed)} {cap}\n"), result.stderr
    assert f"capped by DUALPACE_MAX_ISA={cap}" in result.stdout


@pytest.mark.parametrize("value", ["", "AVX2", "avx512f", "native"])
def test_a_cap_that_is_no_level_stops_the_import(value: str) -> None:
    result = run_python("import dualpace.kernels", DUALPACE_MAX_ISA=value)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "dualpace.core.errors.SettingsError: "
        f"DUALPACE_MAX_ISA: '{value}' is not one of {', '.join(LEVELS)}"
    )


def test_a_portable_twin_is_no_cap() -> None:
    """Twins are for tests: dispatch never takes one."""
    for twin in _native.portable_twins():
        result = run_python("import dualpace.kernels", DUALPACE_MAX_ISA=twin)
        assert result.returncode == 1
        assert f"DUALPACE_MAX_ISA: '{twin}' is for tests" in result.stderr


def test_a_call_may_ask_for_more_than_the_cap() -> None:
    best = capabilities().available[-1]
    program = f"""
import torch
from dualpace.kernels import capabilities, paged_attention_decode
one = torch.ones(1, dtype=torch.int32)
out = torch.empty(1, 1, 8)
kv = torch.ones(1, 2, 1, 16, 8)
paged_attention_decode(torch.ones(1, 1, 8), kv, one.view(1, 1) - 1, one - 1, one, out,
                       scale=1.0, num_threads=1, isa={best!r})
print(capabilities().isa, out.sum().item())
"""
    result = run_python(program, DUALPACE_MAX_ISA="generic")
    assert result.stdout == "generic 8.0\n", result.stderr


@pytest.mark.skipif(
    set(LEVELS) == set(capabilities().available), reason="this machine runs every level"
)
def test_a_level_that_the_machine_lacks_is_refused() -> None:
    missing = next(level for level in LEVELS if level not in capabilities().available)
    with pytest.raises(ValueError, match=f"isa: '{missing}' is not available here; available: "):
        make_call([5]).run(missing)


def test_the_start_up_line_says_it_all() -> None:
    snapshot = capabilities()
    line = str(snapshot)
    for part in (snapshot.isa, snapshot.compiler, snapshot.openmp_runtime):
        assert part
        assert part in line
    assert "\n" not in line
