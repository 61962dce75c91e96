"""Tells whether a process was seen with AVX-512 state, which one that is held to AVX2 never has.

Linux notes for each thread when it was last switched out while those registers were in use
(/proc/THREAD/arch_status, on processors that have them). A thread that has used the upper sixteen
registers or a mask keeps that state to its end, so that a rare look sees it. Knows no engine.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

INTERVAL_S = 0.5
GRACE_S = 0.25
"""After its start a thread may carry the note of what started it."""


class Avx512Watch:
    """Looks at a process and what it starts."""

    seen: bool | None = None
    """Whether any thread was seen so; None: no thread was looked at, or the kernel notes none."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin to look, now and then, until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. May be called again."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self.look()

    def look(self) -> None:
        """Take one look at every thread that there is now."""
        for thread in threads_below(self._pid, self._proc):
            used = uses_avx512(thread)
            if used is not None:
                self.seen = bool(self.seen) or used


def threads_below(pid: int, proc: Path) -> Iterator[Path]:
    """Return the directories of the threads of a process and of its descendants."""
    try:
        tasks = sorted((proc / str(pid) / "task").iterdir())
    except OSError:  # has ended
        return
    for task in tasks:
        yield proc / task.name
        try:
            children = (task / "children").read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in children:
            yield from threads_below(int(child), proc)


def uses_avx512(thread: Path) -> bool | None:
    """Return whether a thread has been seen so since it began; None: not told, or it has ended."""
    try:
        status = (thread / "arch_status").read_text(encoding="ascii")
        stat = (thread / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, value = status.partition(":")
    if name != "AVX512_elapsed_ms":
        return None
    ticks = int(stat.rpartition(")")[2].split()[19])  # field 22: start, since the machine's
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    elapsed_ms = int(value)
    return 0 <= elapsed_ms < 1e3 * (age_s - GRACE_S)
