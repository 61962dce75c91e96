"""Synthetic machines: values for the planner, and the sysfs trees that say the same."""

from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from dualpace.pinning import Core, Topology, format_cpulist
from dualpace.pinning.topology import ordered


@dataclass
class Machine:
    """Siblings are `cores` apart, as Linux numbers them on most servers."""

    nodes: int
    cores_per_node: int
    threads: int
    allowed: set[int] = field(default_factory=set)
    device_node: int | None = None

    @property
    def num_cores(self) -> int:
        return self.nodes * self.cores_per_node

    @property
    def all_cpus(self) -> list[int]:
        return list(range(self.num_cores * self.threads))

    def siblings(self, core: int) -> list[int]:
        return [core + self.num_cores * t for t in range(self.threads)]

    def topology(self) -> Topology:
        cores = []
        for core in range(self.num_cores):
            siblings = self.siblings(core)
            mine = tuple(cpu for cpu in siblings if cpu in self.allowed)
            if mine:
                node = core // self.cores_per_node
                cache = node * self.cores_per_node
                whole = len(mine) == len(siblings)
                cores.append(Core(cpus=mine, node=node, cache=cache, whole=whole))
        return Topology(
            cores=ordered(cores), threads_per_core=self.threads, device_node=self.device_node
        )

    def write(self, root: Path, *, cgroup: str = "") -> None:
        """Write the tree. cgroup: content of /proc/self/cgroup; its cpuset is the allowed CPUs."""
        system = root / "sys/devices/system"
        put(system / "cpu/online", format_cpulist(self.all_cpus))
        for core in range(self.num_cores):
            node = core // self.cores_per_node
            mates = [
                cpu
                for other in range(node * self.cores_per_node, (node + 1) * self.cores_per_node)
                for cpu in self.siblings(other)
            ]
            for cpu in self.siblings(core):
                folder = system / f"cpu/cpu{cpu}"
                put(folder / "topology/core_cpus_list", format_cpulist(self.siblings(core)))
                for level, shared in ((1, self.siblings(core)), (3, mates)):
                    put(folder / f"cache/index{level}/level", str(level))
                    put(folder / f"cache/index{level}/shared_cpu_list", format_cpulist(shared))
            put(system / f"node/node{node}/cpulist", format_cpulist(mates))
        if self.device_node is not None:
            gpu = root / "sys/bus/pci/devices/0000:3b:00.0"
            put(gpu / "class", "0x030200")
            put(gpu / "vendor", "0x10de")
            put(gpu / "numa_node", str(self.device_node))
        if cgroup:
            put(root / "proc/self/cgroup", cgroup)


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """1 to 8 nodes, SMT or not, all CPUs allowed or any odd part of them."""
    machine = Machine(
        nodes=draw(st.integers(1, 8)),
        cores_per_node=draw(st.integers(1, 6)),
        threads=draw(st.sampled_from([1, 2, 4])),
    )
    cpus = machine.all_cpus
    some = st.sets(st.sampled_from(cpus), min_size=1)
    machine.allowed = draw(st.one_of(st.just(set(cpus)), some))
    machine.device_node = draw(st.one_of(st.none(), st.integers(0, machine.nodes - 1)))
    return machine
