"""Which cores each part of a node gets. Pure: a topology and wishes in, core sets out.

Whole physical cores, since hyperthreads of one core share its vector and matrix units. Each CPU
rank lies on one NUMA node, because it reads its KV at memory bandwidth, and all ranks are equally
large, because they wait for each other. What serves (gateway, the gpu-engine's host threads, one
spare core for schedulers and RPC) takes the lowest cores, which interrupts like as well, the
gpu-engine those near its GPU. Where cores do not suffice, parts share them, and the plan says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dualpace.pinning.cpulist import format_cpulist
from dualpace.pinning.topology import Core, Topology

GATEWAY, GPU_ENGINE, SPARE = "gateway", "gpu-engine", "spare"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """Wishes. A part that wants no cores gets none."""

    ranks: int = 1
    """CPU ranks, each on as many cores as can be."""
    gateway_cores: int = 1
    gpu_engine_cores: int = 1
    spare_cores: int = 1

    def __post_init__(self) -> None:
        assert self.ranks > 0
        assert min(self.gateway_cores, self.gpu_engine_cores, self.spare_cores) >= 0


@dataclass(frozen=True, slots=True)
class CoreSet:
    """Some physical cores."""

    cores: tuple[Core, ...] = ()

    @property
    def cpus(self) -> tuple[int, ...]:
        """Every allowed CPU of these cores, rising: for threads that mostly wait."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @property
    def compute_cpus(self) -> tuple[int, ...]:
        """One CPU a core, rising: for threads that compute all the time."""
        return tuple(sorted(core.cpus[0] for core in self.cores))

    def __str__(self) -> str:
        return format_cpulist(self.cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """Core sets. They are disjoint unless a warning says that cores are shared."""

    gateway: CoreSet
    gpu_engine: CoreSet
    ranks: tuple[CoreSet, ...]
    spare: CoreSet
    """The cpu-engine's scheduler and RPC."""
    unused: CoreSet
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        ranks = " ".join(str(rank) for rank in self.ranks)
        parts = f"gateway {self.gateway}; gpu-engine {self.gpu_engine}; ranks {ranks}"
        rest = f"; unused {self.unused}" if self.unused.cores else ""
        return f"{parts}; spare {self.spare}{rest}"


def plan_node(topology: Topology, request: NodeRequest) -> NodePlan:
    """Divide the allowed cores."""
    cores, warnings = topology.cores, _warnings(topology)
    shares = _shares(len(cores) - request.ranks, request, warnings)
    if len(cores) < request.ranks:
        warnings.append(f"{request.ranks} ranks share {len(cores)} cores")
        ranks = tuple(CoreSet((cores[i % len(cores)],)) for i in range(request.ranks))
        left: list[Core] = []
    else:
        ranks, left = _place_ranks(topology, request.ranks, sum(count for _, count in shares))
    if not shares:
        services = dict.fromkeys(_wanted(request), CoreSet(cores))
    else:
        services = _place_services(left, shares, topology.device_node)
    unused = CoreSet(tuple(left))
    if len(left) >= max(2, request.ranks):  # fewer would not make the ranks larger
        warnings.append(f"CPUs {unused} are not used: more ranks would use them")
    return NodePlan(
        gateway=services.get(GATEWAY, CoreSet()),
        gpu_engine=services.get(GPU_ENGINE, CoreSet()),
        ranks=ranks,
        spare=services.get(SPARE, CoreSet()),
        unused=unused,
        warnings=tuple(warnings),
    )


def _warnings(topology: Topology) -> list[str]:
    warnings = []
    torn = [core for core in topology.cores if not core.whole]
    if torn:
        warnings.append(
            f"siblings of CPUs {CoreSet(tuple(torn))} are not allowed here: others may compute on"
            " the same cores"
        )
    quota = topology.quota_cpus
    if quota is not None and quota < len(topology.cpus):
        warnings.append(
            f"{len(topology.cpus)} CPUs are allowed, but a quota grants the time of {quota:g}:"
            " pinned threads will be throttled"
        )
    return warnings


def _wanted(request: NodeRequest) -> dict[str, int]:
    wishes = {
        GATEWAY: request.gateway_cores,
        GPU_ENGINE: request.gpu_engine_cores,
        SPARE: request.spare_cores,
    }
    return {part: count for part, count in wishes.items() if count}


def _shares(
    free: int, request: NodeRequest, warnings: list[str]
) -> list[tuple[tuple[str, ...], int]]:
    """Fit the services into `free` cores: who shares, and how many cores; none: all are ranks'."""
    wanted = _wanted(request)
    if sum(wanted.values()) <= free:
        return [((part,), count) for part, count in wanted.items()]
    if free >= len(wanted):
        while sum(wanted.values()) > free:
            wanted[max(wanted, key=lambda part: wanted[part])] -= 1
        warnings.append(
            "too few cores: " + ", ".join(f"{part} gets {n}" for part, n in wanted.items())
        )
        return [((part,), count) for part, count in wanted.items()]
    parts = tuple(wanted)
    if free <= 0:
        warnings.append(f"no core is left for {', '.join(parts)}: they share those of the ranks")
        return []
    if free == 2:  # three parts: the one that feeds a GPU keeps its own
        warnings.append("too few cores: gateway and spare share one")
        return [((GATEWAY, SPARE), 1), ((GPU_ENGINE,), 1)]
    warnings.append(f"too few cores: {', '.join(parts)} share one")
    return [(parts, 1)]


def _place_ranks(
    topology: Topology, ranks: int, services: int
) -> tuple[tuple[CoreSet, ...], list[Core]]:
    """Return equal ranks, each within a node, as large as can be, and what is left of the cores."""
    free = {n: [c for c in topology.cores if c.node == n] for n in topology.nodes}
    size = _rank_size([len(cores) for cores in free.values()], ranks, services)
    placed: list[CoreSet] = []
    for _ in range(ranks):
        # The emptiest node; of equal ones not the GPU's, for its engine, and the last: interrupts
        # like the first.
        node = max(free, key=lambda n: (len(free[n]), n != topology.device_node, n))
        cores = free[node]
        placed.append(CoreSet(tuple(cores[-size:])))
        del cores[-size:]
    by_place = sorted(placed, key=lambda rank: (rank.cores[0].node, rank.cpus))
    return tuple(by_place), [core for cores in free.values() for core in cores]


def _rank_size(capacities: Sequence[int], ranks: int, services: int) -> int:
    """Return the most cores that each rank can have within one node beside the services."""
    total = sum(capacities)
    for size in range((total - services) // ranks, 1, -1):
        if sum(capacity // size for capacity in capacities) >= ranks:
            return size
    return 1


def _place_services(
    left: list[Core], shares: Sequence[tuple[tuple[str, ...], int]], device_node: int | None
) -> dict[str, CoreSet]:
    """Take the services' cores out of `left`; the gpu-engine chooses first."""
    services: dict[str, CoreSet] = {}
    for parts, count in sorted(shares, key=lambda share: GPU_ENGINE not in share[0]):
        near = device_node if GPU_ENGINE in parts else None
        left.sort(key=lambda c: (c.node, c.cpus))
        left.sort(key=lambda c, near=near: c.node != near)  # type: ignore[misc]
        taken = CoreSet(tuple(left[:count]))
        del left[:count]
        services |= dict.fromkeys(parts, taken)
    return services
