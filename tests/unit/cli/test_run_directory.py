"""A node's directory goes with the node, however it ends; nobody else's is touched."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dualpace.cli.run_directory import RunDirectory
from dualpace.core.errors import SettingsError


def test_it_is_there_while_used_and_gone_after(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as directory:
        assert directory.path.parent == tmp_path
        assert directory.path.stat().st_mode & 0o077 == 0
        (directory.path / "arena").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


def test_two_nodes_do_not_disturb_each_other(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as first, RunDirectory(tmp_path) as second:
        assert first.path != second.path
        assert second.reclaimed == []
        assert first.path.is_dir()


def test_a_killed_nodes_directory_is_reclaimed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from dualpace.cli.run_directory import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])) as d:\n"
        "    (d.path / 'arena').write_bytes(bytes(1 << 20))\n"
        "    print(d.path, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        path = Path(node.stdout.readline().strip())
        with RunDirectory(tmp_path) as other:
            assert other.reclaimed == []
        assert path.is_dir()
        node.send_signal(signal.SIGKILL)
        node.wait()
    with RunDirectory(tmp_path) as following:
        assert following.reclaimed == [path]
        assert not path.exists()


def test_nodes_that_start_together_never_take_each_other_for_dead(tmp_path: Path) -> None:
    failures: list[str] = []
    barrier = threading.Barrier(8)

    def node() -> None:
        for _ in range(20):
            barrier.wait(10)
            with RunDirectory(tmp_path) as directory:
                if directory.reclaimed or not directory.path.is_dir():
                    failures.append(str(directory.reclaimed))
                barrier.wait(10)
                if not (directory.path / "supervisor.lock").exists():
                    failures.append(f"{directory.path} was removed by another")

    threads = [threading.Thread(target=node) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(tmp_path.iterdir()) == []


def test_what_a_node_killed_at_its_very_start_left_goes_once_it_is_old(tmp_path: Path) -> None:
    draft = tmp_path / f".making-dualpace-{os.getuid()}-abc"
    draft.mkdir()
    with RunDirectory(tmp_path):
        assert draft.exists()  # perhaps its owner is only slow
    hour_ago = time.time() - 3600
    os.utime(draft, (hour_ago, hour_ago))
    with RunDirectory(tmp_path):
        assert not draft.exists()


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"shm_dir: .*nowhere is not a directory"):
        RunDirectory(tmp_path / "nowhere")


def test_a_place_that_takes_no_folder_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"shm_dir: no folder can be made in /proc/self"):
        RunDirectory(Path("/proc/self")).__enter__()


def test_a_place_too_deep_for_sockets_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    with pytest.raises(SettingsError, match=r"shm_dir: .* is too long"):
        RunDirectory(deep)
