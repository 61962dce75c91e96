"""Which processors compute: one for each physical core, one core left for everything else.

The choice is a pure function of what the process may use; reading that is apart. Knows no kernels.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dualpace.core.errors import SettingsError

_FEW = 2
"""With so few cores none is left free: threads that wait take little, and a core is half of all."""
_CPU_FOLDER = Path("/sys/devices/system/cpu")
_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this process may use."""

    allowed: frozenset[int]
    """Processors."""
    cores: tuple[frozenset[int], ...]
    """Allowed processors by physical core."""
    quota: float | None
    """Processors' worth of time that its control group grants; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePlan:
    """Who computes where."""

    num_threads: int
    cpus: tuple[int, ...]
    """Thread i's processor; empty: wherever the operating system puts them."""
    reason: str
    """Why threads are tied to processors or not, for the log."""


def plan_cores(machine: Machine, *, threads: int, pin: str) -> CorePlan:
    """Choose the number of compute threads and their processors.

    `threads` 0: one for each physical core that the quota allows for, less one where those are more
    than two. `pin`: "on", "off", or "auto", which ties threads only where a core is left free:
    elsewhere other processes need the same ones, and a tied thread cannot step aside. Raises
    SettingsError if there are too few cores for "on".
    """
    granted = len(machine.cores)
    if machine.quota is not None:
        granted = max(1, min(granted, int(machine.quota)))
    num_threads = threads or (granted - 1 if granted > _FEW else granted)
    if pin == "on" and num_threads > len(machine.cores):
        raise SettingsError(
            f"pin=on: {num_threads} threads need as many physical cores, and this process may use "
            f"{len(machine.cores)}"
        )
    if pin == "off":
        return CorePlan(num_threads=num_threads, cpus=(), reason="pin=off")
    if pin == "auto" and num_threads >= granted:
        return CorePlan(num_threads=num_threads, cpus=(), reason="no core to spare")
    # The first core is where interrupts go as a rule: it is the last one to be taken.
    firsts = sorted(min(core) for core in machine.cores)
    return CorePlan(num_threads=num_threads, cpus=tuple(firsts[-num_threads:]), reason=f"pin={pin}")


def read_machine(
    cpu_folder: Path = _CPU_FOLDER,
    quota_file: Path = _QUOTA_FILE,
    allowed: Collection[int] | None = None,
) -> Machine:
    """Read what this process may use; `allowed` None: its affinity."""
    cpus = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    siblings: Mapping[int, frozenset[int]] = {
        cpu: _siblings(cpu_folder, cpu) & cpus for cpu in cpus
    }
    return Machine(
        allowed=cpus,
        cores=tuple(sorted(set(siblings.values()), key=min)),
        quota=_quota(quota_file),
    )


def _siblings(folder: Path, cpu: int) -> frozenset[int]:
    """Return the processors of a processor's physical core, itself included."""
    try:
        text = (folder / f"cpu{cpu}" / "topology" / "core_cpus_list").read_text(encoding="ascii")
    except OSError:
        return frozenset({cpu})
    return parse_cpu_list(text) | {cpu}


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers of a list such as `0-3,8`, the format of Linux."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _quota(file: Path) -> float | None:
    """Return the quota of control groups v2, `max 100000` or `150000 100000`."""
    try:
        limit, period = file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)
