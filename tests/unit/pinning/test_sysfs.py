"""Reading synthetic trees of sysfs and cgroups."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from dualpace.pinning import format_cpulist, read_topology
from tests.unit.pinning.machines import Machine, machines, put


@given(machine=machines())
@settings(max_examples=25, deadline=None)
def test_a_tree_reads_as_the_machine_that_it_was_written_from(
    tmp_path_factory: pytest.TempPathFactory, machine: Machine
) -> None:
    root = tmp_path_factory.mktemp("root")
    machine.write(root)
    found = read_topology(root, machine.allowed)
    said = machine.topology()
    assert found.cores == said.cores
    assert found.threads_per_core == said.threads_per_core
    assert found.device_node == said.device_node
    assert found.quota_cpus is None


V1 = "3:cpuset:/pod/c\n1:cpu,cpuacct:/pod/c\n0::/"
V2 = "0::/pod/c"


@pytest.mark.parametrize("inside", [True, False], ids=["own-mount", "full-path"])
@pytest.mark.parametrize("version", [1, 2])
def test_cgroups_bound_the_cpus_and_their_time(tmp_path: Path, version: int, inside: bool) -> None:
    machine = Machine(nodes=2, cores_per_node=4, threads=2)
    machine.write(tmp_path, cgroup=V1 if version == 1 else V2)
    base, path = tmp_path / "sys/fs/cgroup", "" if inside else "pod/c"
    if version == 1:
        put(base / "cpuset" / path / "cpuset.cpus", "1-3,9-11")
        put(base / "cpu,cpuacct" / path / "cpu.cfs_quota_us", "350000")
        put(base / "cpu,cpuacct" / path / "cpu.cfs_period_us", "100000")
    else:
        put(base / path / "cpuset.cpus.effective", "1-3,9-11")
        put(base / path / "cpu.max", "350000 100000")
    topology = read_topology(tmp_path, machine.all_cpus)
    assert format_cpulist(topology.cpus) == "1-3,9-11"
    assert topology.quota_cpus == 3.5


@pytest.mark.parametrize(
    ("file", "text"), [("cpu.max", "max 100000"), ("cpu.max", ""), ("cpu.cfs_quota_us", "-1")]
)
def test_no_quota_is_no_bound(tmp_path: Path, file: str, text: str) -> None:
    put(tmp_path / "proc/self/cgroup", "0::/" if file == "cpu.max" else "2:cpu:/")
    folder = tmp_path / "sys/fs/cgroup" / ("" if file == "cpu.max" else "cpu")
    put(folder / file, text)
    put(folder / "cpu.cfs_period_us", "100000")
    assert read_topology(tmp_path, {0}).quota_cpus is None


def test_a_kernel_that_tells_nothing_is_taken_as_plain(tmp_path: Path) -> None:
    topology = read_topology(tmp_path, {0, 5})
    assert [core.cpus for core in topology.cores] == [(0,), (5,)]
    assert (topology.nodes, topology.threads_per_core, topology.device_node) == ((0,), 1, None)


def test_garbage_in_the_tree_is_passed_over(tmp_path: Path) -> None:
    system = tmp_path / "sys/devices/system"
    put(system / "cpu/online", "none of it")
    put(system / "cpu/cpu0/topology/core_cpus_list", "x")
    put(system / "cpu/cpu0/cache/index3/level", "three")
    (system / "node/node0/cpulist").mkdir(parents=True)
    assert [core.cpus for core in read_topology(tmp_path, {0}).cores] == [(0,)]


def test_offline_cpus_are_left_out(tmp_path: Path) -> None:
    put(tmp_path / "sys/devices/system/cpu/online", "0,2")
    assert read_topology(tmp_path, {0, 1, 2}).cpus == (0, 2)


def test_a_gpu_is_found_by_address_and_may_have_no_node(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    for address, node in (("0000:01:00.0", "-1"), ("0000:82:00.0", "1")):
        put(devices / address / "class", "0x030000")
        put(devices / address / "vendor", "0x10de")
        put(devices / address / "numa_node", node)
    assert read_topology(tmp_path, {0}).device_node is None
    assert read_topology(tmp_path, {0}, pci_address="0000:82:00.0").device_node == 1
