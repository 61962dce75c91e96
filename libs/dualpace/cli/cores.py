"""Which cores each service of `dualpace serve` runs on, as their settings say it."""

from dualpace.cli.settings import ServeSettings
from dualpace.pinning import (
    NodePlan,
    NodeRequest,
    Topology,
    format_cpulist,
    pins_text,
    plan_node,
    read_topology,
)


def core_plan(settings: ServeSettings, topology: Topology | None = None) -> NodePlan | None:
    """Return the node's core plan; None: nobody is pinned. topology: None: this machine's."""
    wanted = settings.pinning == "on" or (settings.pinning == "auto" and settings.device != "cpu")
    if not wanted:
        return None
    topology = topology or read_topology()
    computes = settings.device == "cpu"  # then it wants as many cores as the host
    cores = max(1, (len(topology.cores) - 2) // 2) if computes else 1
    return plan_node(topology, NodeRequest(gpu_engine_cores=cores))


def service_cores(
    service: str, settings: ServeSettings, topology: Topology | None = None
) -> dict[str, object]:
    """Return the settings of a service that follow from the plan; none without one."""
    topology = topology or read_topology()
    plan = core_plan(settings, topology)
    if plan is None:
        return {}
    if service == "gateway":
        return {"cores": format_cpulist(topology.positions(plan.gateway.cpus))}
    cores = plan.gpu_engine if service == "gpu-engine" else plan.ranks[0]
    threads = len(cores.cores) if service == "cpu-engine" or settings.device == "cpu" else 1
    return {"cores": pins_text(topology, cores, plan.spare), "threads": threads}
