"""A pytest plugin, for a process of its own: makes amxbf16 available on processors without tiles.

Compiles tile_emulator.cpp, which needs a C++ compiler, and runs the real instructions on it.
"""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from dualpace.kernels import _native

SOURCE = Path(__file__).with_name("tile_emulator.cpp")
FLAGS = ("-O2", "-std=c++20", "-mfma", "-ffp-contract=off", "-shared", "-fPIC")


def compiler() -> str | None:
    return shutil.which("c++") or shutil.which("g++")


def install() -> ctypes.CDLL:
    program = compiler()
    assert program is not None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "tile_emulator.so"
        subprocess.run([program, *FLAGS, str(SOURCE), "-o", str(library)], check=True)
        emulator = ctypes.CDLL(str(library))
    emulator.executed_instructions.restype = ctypes.c_long
    emulator.threads_with_tiles.restype = ctypes.c_long
    assert emulator.install() == 0
    _native.assume_available("amxbf16")
    return emulator


emulator = install()


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"emulated {emulator.executed_instructions()} tile instructions")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    assert emulator.threads_with_tiles() == 0, "a thread has not released its tiles"
