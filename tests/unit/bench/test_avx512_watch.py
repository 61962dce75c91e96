"""The watch believes the kernel's note of a thread, from a while after its start."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cpu.avx512_watch import Avx512Watch, threads_below, uses_avx512

AGE_S = 10.0


def write_thread(proc: Path, number: int, elapsed_ms: int | None, *, children: str = "") -> Path:
    """Make a thread that started AGE_S ago, as /proc shows it; its process has no other."""
    thread = proc / str(number)
    task = thread / "task" / str(number)
    task.mkdir(parents=True)
    (task / "children").write_text(children)
    ticks = round((time.clock_gettime(time.CLOCK_BOOTTIME) - AGE_S) * os.sysconf("SC_CLK_TCK"))
    before = " ".join(["0"] * 18)
    (thread / "stat").write_text(f"{number} (a name) of) S {before} {ticks} 0 0")
    if elapsed_ms is not None:
        (thread / "arch_status").write_text(f"AVX512_elapsed_ms:\t{elapsed_ms}\n")
    return thread


@pytest.mark.parametrize(
    ("elapsed_ms", "used"),
    [
        (-1, False),  # never
        (0, True),
        (5_000, True),
        (9_900, False),  # what its parent left it
        (50_000, False),
        (None, None),  # a kernel or a processor that has no such note
    ],
)
def test_a_note_counts_from_a_while_after_the_start(
    tmp_path: Path, elapsed_ms: int | None, used: bool | None
) -> None:
    assert uses_avx512(write_thread(tmp_path, 7, elapsed_ms)) is used


@pytest.mark.parametrize(
    ("notes", "seen"),
    [
        ({7: -1, 8: -1}, False),
        ({7: -1, 8: 3}, True),
        ({7: 3, 8: -1}, True),
        ({7: None, 8: -1}, False),
        ({7: None, 8: None}, None),
    ],
)
def test_a_process_is_seen_by_any_thread_of_it_or_of_what_it_started(
    tmp_path: Path, notes: dict[int, int | None], seen: bool | None
) -> None:
    write_thread(tmp_path, 7, notes[7], children="8 9")  # 9 has ended
    write_thread(tmp_path, 8, notes[8])
    watch = Avx512Watch(7, tmp_path)
    watch.look()
    assert watch.seen is seen


def test_what_was_seen_once_stays_seen(tmp_path: Path) -> None:
    thread = write_thread(tmp_path, 7, 3)
    watch = Avx512Watch(7, tmp_path)
    watch.look()
    (thread / "arch_status").write_text("AVX512_elapsed_ms:\t-1\n")
    watch.look()
    assert watch.seen is True


@pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(),
    reason="needs a kernel that lists the children of a thread",
)
def test_threads_of_a_living_process_and_its_children_are_found() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 20
        while len(list(threads_below(process.pid, Path("/proc")))) < 2:
            assert time.monotonic() < deadline, "the child was not found"
            time.sleep(0.02)
        process.communicate(b"\n")
    assert list(threads_below(process.pid, Path("/proc"))) == []
