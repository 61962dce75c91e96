"""A node's directory goes with the node, however it ends; nobody else's is touched."""

import os
import signal
import subprocess
import sys
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


def test_a_directory_without_a_lock_is_spared_while_young(tmp_path: Path) -> None:
    """Another node may be just about to lock it."""
    path = tmp_path / f"dualpace-{os.getuid()}-abc"
    path.mkdir()
    with RunDirectory(tmp_path) as node:
        assert node.reclaimed == []
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    with RunDirectory(tmp_path) as node:
        assert node.reclaimed == [path]


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"shm_dir: .*nowhere is not a directory"):
        RunDirectory(tmp_path / "nowhere")
