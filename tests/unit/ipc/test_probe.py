"""The probe reads heartbeats from the file, beside engines that know nothing of it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dualpace.core.errors import ArenaError
from dualpace.core.request import Engine
from dualpace.ipc.arena import Arena
from dualpace.ipc.layout import ArenaGeometry, KvDtype
from dualpace.ipc.probe import fault_of, heartbeat_ages

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


def test_ages_follow_the_engines(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path, GEOMETRY, bytes(32))
    try:
        assert heartbeat_ages(tmp_path, 10.0) == {Engine.GPU: None, Engine.CPU: None}
        arena.heartbeat(Engine.CPU).start(4.0)
        assert heartbeat_ages(tmp_path, 10.0)[Engine.CPU] == pytest.approx(6.0)
    finally:
        arena.close()


def test_no_arena_or_another_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="No such file"):
        heartbeat_ages(tmp_path, 0.0)
    (tmp_path / "arena").write_bytes(b"something else" * 100)
    with pytest.raises(ArenaError, match="not an arena"):
        heartbeat_ages(tmp_path, 0.0)


@pytest.mark.parametrize(
    ("gpu", "cpu", "gpu_alive", "cpu_alive"),
    [
        (1.0, 1.0, True, True),
        (99.0, 1.0, False, False),  # the cpu-engine must let go of the arena
        (1.0, 99.0, True, False),
        (1.0, None, True, False),
    ],
)
def test_who_counts_as_dead(
    gpu: float, cpu: float | None, gpu_alive: bool, cpu_alive: bool
) -> None:
    ages = {Engine.GPU: gpu, Engine.CPU: cpu}
    assert (fault_of(Engine.GPU, ages, 10.0) is None) is gpu_alive
    assert (fault_of(Engine.CPU, ages, 10.0) is None) is cpu_alive


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
    finally:
        arena.close()
