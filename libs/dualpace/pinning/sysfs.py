"""Reads the topology of this machine, as far as this process may use it, from sysfs and cgroups.

Everything lies below `root`, so that tests can build machines. What the kernel does not tell
(sandboxes, old kernels) is assumed to be plain: one CPU a core, one node.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from dualpace.pinning.cpulist import parse_cpulist
from dualpace.pinning.topology import Core, Topology, ordered

_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"


def read_topology(
    root: Path = Path("/"), affinity: Iterable[int] | None = None, *, pci_address: str = ""
) -> Topology:
    """Return what this process may run on.

    affinity: allowed CPUs; None: the calling thread's own. pci_address: of the GPU whose node is
    asked for, as `0000:3b:00.0`; empty: the first NVIDIA display device.
    """
    allowed = set(os.sched_getaffinity(0) if affinity is None else affinity)
    system = root / "sys/devices/system"
    for bound in (_cpus(system / "cpu/online"), _cpuset(root)):
        # A set that shares nothing with the mask says nothing about this process.
        if bound is not None and allowed & bound:
            allowed &= bound
    nodes = _nodes(system / "node")
    cores: dict[tuple[int, ...], Core] = {}
    threads_per_core = 1
    for cpu in sorted(allowed):
        siblings = _siblings(system / f"cpu/cpu{cpu}/topology", cpu)
        threads_per_core = max(threads_per_core, len(siblings))
        mine = tuple(sorted(siblings & allowed))
        cores[mine] = Core(
            cpus=mine,
            node=nodes.get(cpu, 0),
            cache=_last_cache(system / f"cpu/cpu{cpu}/cache", cpu),
            whole=siblings <= allowed,
        )
    return Topology(
        cores=ordered(tuple(cores.values())),
        threads_per_core=threads_per_core,
        device_node=_device_node(root / "sys/bus/pci/devices", pci_address),
        quota_cpus=_quota(root),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _cpus(path: Path) -> set[int] | None:
    text = _text(path)
    if not text:
        return None
    try:
        return set(parse_cpulist(text))
    except ValueError:
        return None


def _siblings(folder: Path, cpu: int) -> set[int]:
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second before Linux 5.3
        found = _cpus(folder / name)
        if found is not None and cpu in found:
            return found
    return {cpu}


def _last_cache(folder: Path, cpu: int) -> int:
    """Return the least CPU that shares the cache of the highest level."""
    best, shared = 0, {cpu}
    for index in sorted(folder.glob("index*")):
        level, cpus = _text(index / "level"), _cpus(index / "shared_cpu_list")
        if level is not None and level.isdecimal() and cpus and int(level) >= best:
            best, shared = int(level), cpus
    return min(shared)


def _nodes(folder: Path) -> dict[int, int]:
    nodes: dict[int, int] = {}
    for path in folder.glob("node[0-9]*"):
        number = path.name.removeprefix("node")
        for cpu in _cpus(path / "cpulist") or ():
            nodes[cpu] = int(number)
    return nodes


def _device_node(folder: Path, address: str) -> int | None:
    devices = [folder / address] if address else sorted(folder.glob("*"))
    for device in devices:
        display = (_text(device / "class") or "").startswith(_DISPLAY_CLASS)
        if display and (address or _text(device / "vendor") == _NVIDIA):
            node = _text(device / "numa_node") or ""
            return int(node) if node.isdecimal() else None  # -1: the firmware does not say
    return None


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Return where this process's limits may be: version 2 first; outermost last.

    Inside a container the path in /proc may be the host's while the mount is the container's own.
    """
    base = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            folders += [base / path.lstrip("/"), base]
        elif controller in controllers.split(","):
            mount = base / controllers if (base / controllers).is_dir() else base / controller
            folders += [mount / path.lstrip("/"), mount]
    return folders


def _cpuset(root: Path) -> set[int] | None:
    for folder in _cgroup_folders(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            found = _cpus(folder / name)
            if found is not None:
                return found
    return None


def _quota(root: Path) -> float | None:
    for folder in _cgroup_folders(root, "cpu"):
        text = _text(folder / "cpu.max")
        if text is None:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
            text = f"{quota} {period}" if quota and period else None
        numbers = (text or "").split()
        if len(numbers) == 2 and all(n.isdecimal() for n in numbers) and int(numbers[1]) > 0:
            return int(numbers[0]) / int(numbers[1])
        if text is not None:  # max, or -1: no bound
            return None
    return None
