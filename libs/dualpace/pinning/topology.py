"""What a process may run on: physical cores, their memory nodes and caches. Values only.

It knows nothing of roles. CPUs that the process is not allowed to use are not in here.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """A physical core."""

    cpus: tuple[int, ...]
    """Its logical CPUs that are allowed, rising; at least one."""
    node: int
    """NUMA node."""
    cache: int
    """Least CPU of those that share its last-level cache."""
    whole: bool = True
    """Whether no sibling is outside the allowed set, perhaps in use by somebody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The allowed part of a machine."""

    cores: tuple[Core, ...]
    """By node, then cache, then first CPU; at least one."""
    threads_per_core: int
    """Of the machine; a core may have fewer that are allowed."""
    device_node: int | None = None
    """NUMA node of the GPU; None: no GPU, or the machine does not say."""
    quota_cpus: float | None = None
    """CPU time per time that a cgroup grants; None: no bound."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """Every allowed logical CPU, rising. Positions in a plan count along this."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @property
    def nodes(self) -> tuple[int, ...]:
        """NUMA nodes that have an allowed CPU, rising."""
        return tuple(sorted({core.node for core in self.cores}))

    def positions(self, cpus: Sequence[int]) -> tuple[int, ...]:
        """Return where these CPUs stand among the allowed ones."""
        where = {cpu: position for position, cpu in enumerate(self.cpus)}
        return tuple(where[cpu] for cpu in cpus)


def ordered(cores: Sequence[Core]) -> tuple[Core, ...]:
    """Return cores in the order that a Topology has them."""
    return tuple(sorted(cores, key=lambda core: (core.node, core.cache, core.cpus[0])))


def uniform_topology(*, cpus: int, threads_per_core: int = 1, numa_nodes: int = 1) -> Topology:
    """Return a regular machine, for planning by numbers where nobody has looked.

    Siblings are neighbours, nodes are neighbouring cores; a rest of CPUs makes a smaller core.
    """
    assert cpus > 0 and threads_per_core > 0 and numa_nodes > 0
    groups = [range(i, min(i + threads_per_core, cpus)) for i in range(0, cpus, threads_per_core)]
    nodes = [i * min(numa_nodes, len(groups)) // len(groups) for i in range(len(groups))]
    first = {node: groups[nodes.index(node)][0] for node in set(nodes)}
    cores = [
        Core(cpus=tuple(group), node=node, cache=first[node])
        for group, node in zip(groups, nodes, strict=True)
    ]
    return Topology(cores=ordered(cores), threads_per_core=threads_per_core)
