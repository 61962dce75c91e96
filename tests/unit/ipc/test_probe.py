"""The probe reads heartbeats from the file, beside engines that know nothing of it."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dualpace.core.errors import ArenaError
from dualpace.core.request import Engine
from dualpace.ipc.arena import Arena
from dualpace.ipc.heartbeat import Heartbeat
from dualpace.ipc.layout import HEARTBEAT, ArenaGeometry, KvDtype
from dualpace.ipc.probe import fault_of, process_start_s, read_heartbeat

GEOMETRY = ArenaGeometry(
    num_layers=1,
    num_blocks=4,
    num_heads=1,
    num_kv_heads=1,
    block_size=16,
    head_dim=8,
    kv_dtype=KvDtype.FLOAT32,
    num_slots=2,
    max_blocks_per_sequence=4,
    request_bytes=64,
)


def test_a_snapshot_is_the_engines_word(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path, GEOMETRY, bytes(32))
    try:
        assert read_heartbeat(tmp_path, Engine.CPU).age_s(10.0) is None
        arena.heartbeat(Engine.CPU).start(4.0)
        beat = read_heartbeat(tmp_path, Engine.CPU)
        assert beat.age_s(10.0) == pytest.approx(6.0)
        assert beat.started_s == pytest.approx(4.0)
        assert read_heartbeat(tmp_path, Engine.GPU).age_s(10.0) is None
    finally:
        arena.close()


def test_no_arena_or_another_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="No such file"):
        read_heartbeat(tmp_path, Engine.GPU)
    (tmp_path / "arena").write_bytes(b"something else" * 100)
    with pytest.raises(ArenaError, match="not an arena"):
        read_heartbeat(tmp_path, Engine.GPU)


def beat_of(started_s: float, beat_s: float) -> Heartbeat:
    beat = Heartbeat(np.zeros(1, HEARTBEAT))
    beat.start(started_s)
    beat.beat(beat_s, busy=False)
    return beat


@pytest.mark.parametrize(
    ("began_s", "beat_s", "process_s", "says"),
    [
        (50.0, 99.0, 49.0, None),
        (50.0, 80.0, 49.0, "the gpu-engine has been silent for 20 s"),
        (50.0, 99.0, 99.5, "the gpu-engine has not begun again"),  # in the same process id
        (50.0, 99.0, None, "the gpu-engine has not begun again"),
    ],
)
def test_who_counts_as_dead(
    began_s: float, beat_s: float, process_s: float | None, says: str | None
) -> None:
    beat = beat_of(began_s, beat_s)
    assert fault_of("gpu-engine", beat, 100.0, process_s, 10.0) == says


def test_the_start_of_a_process_is_read_from_the_kernel() -> None:
    before_s = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        began_s = process_start_s(child.pid)
        assert began_s is not None
        assert before_s - 0.02 <= began_s <= time.monotonic()
        child.communicate(b"\n")
    assert process_start_s(child.pid) is None


def test_as_a_program(tmp_path: Path) -> None:
    def probe(*flags: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "dualpace.ipc.probe", f"--run-dir={tmp_path}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    status, said = probe("--engine=gpu")
    assert (status, "No such file" in said) == (1, True)
    arena = Arena.create(tmp_path, GEOMETRY, bytes(32))
    try:
        arena.heartbeat(Engine.GPU).start(time.monotonic())
        assert probe("--engine=gpu") == (0, "")
        assert probe("--engine=cpu") == (1, "the cpu-engine has not begun\n")
        assert probe("--engine=tpu")[0] == 2
        arena.heartbeat(Engine.GPU).start(1.0)  # as if by a process that had this one's id before
        assert probe("--engine=gpu") == (1, "the gpu-engine has not begun again\n")
    finally:
        arena.close()
