"""The directory of one running node: arena and sockets. Leftovers of killed nodes are reclaimed.

Each node locks its directory for as long as its supervisor lives, so that a directory nobody locks
is known to be dead, however its owner died.
"""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from dualpace.core.errors import SettingsError

_LOCK_NAME = "supervisor.lock"


class RunDirectory:
    """A fresh directory in shared memory; use as a context manager."""

    def __init__(self, parent: Path) -> None:
        if not parent.is_dir():
            raise SettingsError(f"shm_dir: {parent} is not a directory")
        self._parent = parent
        self._prefix = f"dualpace-{os.getuid()}-"
        self.path = Path()
        self.reclaimed: list[Path] = []
        """What killed nodes had left behind."""

    def __enter__(self) -> "RunDirectory":
        """Remove what dead nodes left, then make this node's own."""
        for path in self._parent.glob(self._prefix + "*"):
            if _is_dead(path):
                shutil.rmtree(path, ignore_errors=True)
                self.reclaimed.append(path)
        self.path = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._parent))
        self._lock = os.open(self.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove this node's directory."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _is_dead(path: Path) -> bool:
    try:
        fd = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Another node may be between making its directory and locking it: only an old one is dead.
        return _age_s(path) > 60.0
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
