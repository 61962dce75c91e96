"""Facts of synthetic and of this machine."""

import time
from pathlib import Path

import pytest

from dualpace.profiler.hardware import (
    available_bytes,
    fingerprint,
    hardware_facts,
    operator_topology,
    waited_s,
)
from tests.unit.pinning.machines import Machine, put


@pytest.fixture
def root(tmp_path: Path) -> Path:
    machine = Machine(nodes=2, cores_per_node=4, threads=2)
    machine.write(tmp_path)
    put(tmp_path / "proc/cpuinfo", "processor : 0\nmodel name\t: Some CPU 9000 @ 2.0GHz")
    put(tmp_path / "proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB")
    put(tmp_path / "sys/devices/system/cpu/cpu0/cache/index3/size", "30720K")
    return tmp_path


def test_facts_are_what_the_machine_says(root: Path) -> None:
    facts = hardware_facts("cpu", 3, root)
    assert facts["cpu"] == "Some CPU 9000 @ 2.0GHz"
    assert (facts["memory_gib"], facts["last_cache_mib"], facts["threads"]) == (64, 30.0, 3)
    assert facts["threads_per_core"] == 2
    assert operator_topology(root)["numa_nodes"] == 2


def test_a_fingerprint_changes_with_any_fact_and_with_nothing_else(root: Path) -> None:
    facts = hardware_facts("cpu", 3, root)
    assert fingerprint(facts) == fingerprint(dict(reversed(facts.items())))
    for name in facts:
        assert fingerprint(facts | {name: "other"}) != fingerprint(facts)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 32 << 30),
        ({"memory.max": "max", "memory.current": "5"}, 32 << 30),
        ({"memory.max": str(8 << 30), "memory.current": str(3 << 30)}, 5 << 30),
        (
            {
                "memory/memory.limit_in_bytes": str(2 << 30),
                "memory/memory.usage_in_bytes": str(3 << 30),
            },
            0,
        ),
    ],
    ids=["no-cgroup", "no-limit", "version-2", "version-1"],
)
def test_free_memory_is_the_cgroups_where_that_is_less(
    root: Path, files: dict[str, str], wanted: int
) -> None:
    for name, text in files.items():
        put(root / "sys/fs/cgroup" / name, text)
    assert available_bytes(root) == wanted


def test_a_machine_that_tells_nothing_has_facts(tmp_path: Path) -> None:
    facts = hardware_facts("cpu", 1, tmp_path)
    assert facts["cpu"] and facts["cpus"] >= 1
    assert operator_topology(tmp_path)["numa_nodes"] == 1
    assert waited_s(tmp_path) == 0.0


def test_time_spent_waiting_for_a_cpu_only_grows() -> None:
    before = waited_s()
    time.sleep(0.01)
    assert waited_s() >= before >= 0.0
