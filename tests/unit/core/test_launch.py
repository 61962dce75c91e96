"""A container's first process can be stopped while it still imports."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")
SLOW = """
import sys, time
print("importing", *sys.argv[1:], flush=True)
time.sleep(60)
"""


def first_process(folder: Path, *command: str) -> tuple[subprocess.Popen[str], int]:
    """Start a command as the first process of a PID namespace, and return it with its PID here."""
    process = subprocess.Popen(
        [*NAMESPACE, sys.executable, *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        _, said = process.communicate()
        if "unshare failed" in said:
            pytest.skip(f"no PID namespace to be had here: {said.strip()}")
        pytest.fail(said)
    assert line == "importing --flag\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return process, int(children[0])


def signalled(folder: Path, command: Sequence[str], number: int) -> tuple[int | None, str]:
    """Return the status within 2 s of a signal, or None, and what was said on stderr."""
    process, pid = first_process(folder, *command)
    with process:
        try:
            time.sleep(0.05)
            os.kill(pid, number)
            _, said = process.communicate(timeout=2)
        except subprocess.TimeoutExpired:
            return None, ""
        else:
            return process.returncode, said
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_first_process_that_still_imports(tmp_path: Path, number: int) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    status, said = signalled(tmp_path, ("-m", "dualpace.core.launch", "slow", "--flag"), number)
    assert status == 0
    assert said == f"slow stopped while starting: {signal.Signals(number).name}\n"


def test_without_it_the_kernel_drops_the_signal(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    status, _ = signalled(tmp_path, ("-m", "slow", "--flag"), signal.SIGTERM)
    assert status is None


@pytest.mark.parametrize("arguments", [(), ("--flag",)])
def test_it_wants_a_module(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "dualpace.core.launch", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "usage")
