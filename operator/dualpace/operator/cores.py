"""How the CPUs of a node are divided among the containers of its pod. Pure arithmetic.

Numbers, not sets: which CPUs a container gets is the kubelet's to say (static CPU manager), and
an operator that wrote cpusets would fight it. Whole physical cores, since hyperthreads of one core
share its vector and matrix units; the cpu-engine on one NUMA node, since the arena is read at
memory bandwidth; and one core of the cpu-engine computes nothing, for its scheduler and RPC.
"""

from dataclasses import dataclass

from dualpace.operator.model.profile import Topology
from dualpace.operator.model.service import ServiceSpec
from dualpace.operator.observed import NodeView

_SMT_LABEL = "feature.node.kubernetes.io/cpu-hardware_multithreading"
"""Of node feature discovery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePlan:
    """Whole CPUs of each container, and the cpu-engine's compute threads."""

    gateway: int
    gpu_engine: int
    cpu_engine: int
    cpu_engine_threads: int

    @property
    def total(self) -> int:
        """CPUs of the pod."""
        return self.gateway + self.gpu_engine + self.cpu_engine


class CoresError(ValueError):
    """The node has too few CPUs; the text says how many are needed."""


def plan_cores(spec: ServiceSpec, node: NodeView, topology: Topology | None) -> CorePlan:
    """Divide a node's allocatable CPUs. Raises CoresError if they do not suffice."""
    whole = spec.pinning.policy == "WholeCores"
    threads = _threads_per_core(spec, node, topology) if whole else 1
    gateway = _up(spec.gateway.cpus, threads)
    gpu_engine = _up(spec.gpu_engine.cpus, threads)
    left = node.cpus - gateway - gpu_engine
    cpu_engine = spec.cpu_engine.cpus
    if cpu_engine:
        cpu_engine = _up(cpu_engine, threads)
    else:
        cpu_engine = _down(left - spec.pinning.reserved_cpus, threads)
        if whole and topology is not None and topology.numa_nodes > 1:
            cpu_engine = min(cpu_engine, _down(topology.cpus // topology.numa_nodes, threads))
    if cpu_engine < threads or cpu_engine > left:
        wanted = max(spec.cpu_engine.cpus, threads)
        reserved = 0 if spec.cpu_engine.cpus else spec.pinning.reserved_cpus
        raise CoresError(
            f"{node.cpus} allocatable CPUs, but gateway ({gateway}), gpu-engine ({gpu_engine}),"
            f" cpu-engine (at least {_up(wanted, threads)}) and reserve ({reserved}) need"
            f" {gateway + gpu_engine + _up(wanted, threads) + reserved}"
        )
    cores = cpu_engine // threads
    return CorePlan(
        gateway=gateway,
        gpu_engine=gpu_engine,
        cpu_engine=cpu_engine,
        cpu_engine_threads=max(1, cores - 1) if whole else cpu_engine,
    )


def _threads_per_core(spec: ServiceSpec, node: NodeView, topology: Topology | None) -> int:
    if spec.pinning.threads_per_core:
        return spec.pinning.threads_per_core
    if topology is not None:
        return topology.threads_per_core
    return 1 if node.id.labels.get(_SMT_LABEL) == "false" else 2


def _up(cpus: int, threads: int) -> int:
    return -(-cpus // threads) * threads


def _down(cpus: int, threads: int) -> int:
    return cpus // threads * threads
