"""What the node is: facts for people, and a fingerprint of those that a measurement depends on."""

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

from dualpace.core.timing import least_seconds
from dualpace.pinning import read_topology

_STREAM_WORDS = 32 << 20
"""256 MiB: far above any cache."""


def hardware_facts(device: str, threads: int, root: Path = Path("/")) -> dict[str, Any]:
    """Return processor, memory, instruction sets, topology, GPU, driver and link, as JSON."""
    topology = read_topology(root)
    facts: dict[str, Any] = {
        "cpu": _cpu_name(root),
        "isa": _isa(),
        "cpus": len(topology.cpus),
        "cores": len(topology.cores),
        "threads_per_core": topology.threads_per_core,
        "numa_nodes": len(topology.nodes),
        "last_cache_mib": _last_cache_mib(root),
        "memory_gib": round(_meminfo(root).get("MemTotal", 0) / (1 << 20)),
        "kernel": platform.release(),
        "torch": torch.__version__,
        "threads": threads,
    }
    if device.startswith("cuda"):
        facts |= _gpu_facts(torch.device(device), root)
    return facts


def fingerprint(facts: dict[str, Any]) -> str:
    """Return a digest of the facts: equal on a node that nothing has happened to."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def operator_topology(root: Path = Path("/")) -> dict[str, int]:
    """Return the whole machine's processors, as a report tells them."""
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
    return {
        "cpus": os.cpu_count() or 1,
        "threads_per_core": read_topology(root).threads_per_core,
        "numa_nodes": max(1, nodes),
    }


def read_bandwidth_gbytes_per_s(threads: int) -> float | None:
    """Return the best of five reads of memory by so many threads; None without native kernels."""
    try:
        from dualpace.kernels import stream_read  # noqa: PLC0415
    except ImportError:
        return None
    words = torch.ones(_STREAM_WORDS, dtype=torch.int64)
    best_s = least_seconds(lambda: stream_read(words, num_threads=threads))
    return words.nbytes / best_s / 1e9


def waited_s(root: Path = Path("/")) -> float:
    """Return how long this process's threads have waited for a CPU so far; 0 if nobody counts."""
    total = 0
    for path in (root / "proc/self/task").glob("*/schedstat"):
        fields = _text(path).split()
        if len(fields) == 3 and fields[1].isdecimal():
            total += int(fields[1])
    return total / 1e9


def available_bytes(root: Path = Path("/")) -> int:
    """Return memory that this process may still take: the machine's, or its cgroup's if less."""
    free = _meminfo(root).get("MemAvailable", 0) << 10
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = (_number(root / "sys/fs/cgroup" / name) for name in (limit_file, used_file))
        if limit is not None and used is not None:
            free = min(free, max(0, limit - used))
    return free


def _gpu_facts(device: torch.device, root: Path) -> dict[str, Any]:
    index = device.index or 0
    properties: Any = torch.cuda.get_device_properties(index)  # its stubs lack the address
    address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}"
    address += f":{properties.pci_device_id:02x}.0"
    pci = root / "sys/bus/pci/devices" / address
    return {
        "gpu": properties.name,
        "gpu_memory_gib": round(properties.total_memory / (1 << 30)),
        "gpu_node": read_topology(root, pci_address=address).device_node,
        "driver": _text(root / "sys/module/nvidia/version"),
        "cuda": torch.version.cuda,
        "link": " x".join((_text(pci / "max_link_speed"), _text(pci / "max_link_width"))),
    }


def _isa() -> str:
    try:
        from dualpace.kernels import capabilities  # noqa: PLC0415
    except ImportError:
        return "no native kernels"
    return capabilities().isa


def _cpu_name(root: Path) -> str:
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _last_cache_mib(root: Path) -> float:
    folder = root / "sys/devices/system/cpu/cpu0/cache"
    sizes = [_text(index / "size") for index in sorted(folder.glob("index*"))]
    kib = [int(size[:-1]) for size in sizes if size[:-1].isdecimal() and size[-1] == "K"]
    return max(kib, default=0) / 1024


def _meminfo(root: Path) -> dict[str, int]:
    """Return /proc/meminfo in KiB."""
    found = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdecimal():
            found[name] = int(number[0])
    return found


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
