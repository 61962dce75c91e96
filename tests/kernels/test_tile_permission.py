"""What the operating system says about tiles: asked once, believed, and told in words."""

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from dualpace.kernels import _native

ARCH_PRCTL = 158
IS_X86_LINUX = sys.platform == "linux" and platform.machine() == "x86_64"

UNDER_SECCOMP = """
import ctypes, struct, sys
from dualpace.kernels import _native
number, error = int(sys.argv[1]), int(sys.argv[2])
instructions = [
    struct.pack("HBBI", 0x20, 0, 0, 0),            # load the system call's number
    struct.pack("HBBI", 0x15, 0, 1, number),       # skip the next one unless it is this
    struct.pack("HBBI", 0x06, 0, 0, 0x50000 | error),
    struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000),   # allow
]
code = ctypes.create_string_buffer(b"".join(instructions), 8 * len(instructions))
program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(code))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    print("no seccomp")
else:
    print(_native.request_tile_permission())
"""


@pytest.mark.skipif(not IS_X86_LINUX, reason="arch_prctl is x86-64 Linux's")
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_a_seccomp_filter_s_answer_is_the_request_s(error: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", UNDER_SECCOMP, str(ARCH_PRCTL), str(error)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    if result.stdout == "no seccomp\n":
        pytest.skip("this system lets no process filter its own calls")
    assert result.stdout == f"{error}\n"


@pytest.mark.skipif(not IS_X86_LINUX, reason="arch_prctl is x86-64 Linux's")
def test_permission_is_granted_where_the_level_is_available_and_only_there() -> None:
    granted = _native.request_tile_permission() == 0
    if "amxbf16" in _native.available_isas():
        assert granted
        assert _native.tile_refusal() == ""
    elif granted:
        # Tiles, but not AVX-512 with bfloat16 beside them.
        assert "avx512bf16" not in _native.available_isas()


@pytest.mark.parametrize(
    ("saved", "error", "words"),
    [
        (True, 0, ""),
        (False, 0, "the operating system does not save tiles"),
        (True, errno.EPERM, f"{os.strerror(errno.EPERM)}); a seccomp filter may forbid the call"),
        (True, errno.ENOSYS, f"{os.strerror(errno.ENOSYS)}); a seccomp filter may forbid the call"),
        (True, errno.EINVAL, f"{os.strerror(errno.EINVAL)}); it is older than Linux 5.16"),
        (True, errno.ENOSPC, "a thread's alternative signal stack is too small"),
        (True, errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)),
    ],
)
def test_refusals_are_told_in_words(saved: bool, error: int, words: str) -> None:
    text = _native.describe_tile_refusal(saved, error)
    assert words in text
    assert bool(text) == bool(words)


def test_nothing_is_refused_where_there_are_no_tiles() -> None:
    if "amxbf16" not in _native.available_isas() and "amx" not in _cpu_flags():
        assert _native.tile_refusal() == ""


def _cpu_flags() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    return next((line for line in lines if line.startswith("flags")), "")
