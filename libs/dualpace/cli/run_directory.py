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
from dualpace.core.sockets import MAX_SOCKET_PATH

_LOCK_NAME = "supervisor.lock"
_DRAFT = ".making-"
_DRAFT_LIFE_S = 60.0
_LONGEST_PARENT = MAX_SOCKET_PATH - len("/dualpace-4294967295-abcdefgh/gpu.sock")


class RunDirectory:
    """A fresh directory in shared memory; use as a context manager."""

    def __init__(self, parent: Path) -> None:
        if not parent.is_dir():
            raise SettingsError(f"shm_dir: {parent} is not a directory")
        if len(os.fsencode(parent)) > _LONGEST_PARENT:
            raise SettingsError(
                f"shm_dir: {parent} is too long: a path of at most {_LONGEST_PARENT} bytes leaves "
                "room for the names of sockets"
            )
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
        # It gets its name when it is locked: under that name nobody ever sees it unlocked alive.
        try:
            draft = Path(tempfile.mkdtemp(prefix=_DRAFT + self._prefix, dir=self._parent))
        except OSError as error:
            raise SettingsError(
                f"shm_dir: no folder can be made in {self._parent}: {error.strerror}"
            ) from None
        self._lock = os.open(draft / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = draft.with_name(draft.name.removeprefix(_DRAFT))
        draft.rename(self.path)
        for leftover in self._parent.glob(_DRAFT + self._prefix + "*"):
            if _age_s(leftover) > _DRAFT_LIFE_S:
                shutil.rmtree(leftover, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove this node's directory."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _is_dead(path: Path) -> bool:
    try:
        fd = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return path.exists()  # half removed by a node that was killed as it ended
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
