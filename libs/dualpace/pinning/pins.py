"""Where the threads of one process run, as its setting says it. Pure: a text and a topology in.

`off`: wherever the system likes. `auto`: whole cores of those allowed, one of them for threads
that do not compute. Or positions among the allowed CPUs, as a planner elsewhere chose them:
compute threads, and, after a slash, all others: `2-7/0-1`.
"""

from dataclasses import dataclass

from dualpace.core.errors import SettingsError
from dualpace.pinning.cpulist import format_cpulist, parse_cpulist
from dualpace.pinning.planner import CoreSet, NodeRequest, plan_node
from dualpace.pinning.topology import Topology

OFF, AUTO = "off", "auto"


@dataclass(frozen=True, slots=True)
class Pins:
    """CPUs of a process's threads."""

    compute: tuple[int, ...]
    """Of the main thread and of what it starts, such as compute threads. Not empty."""
    helpers: tuple[int, ...]
    """Of the other threads: IO, signals. Not empty."""

    def __str__(self) -> str:
        return f"compute {format_cpulist(self.compute)}, others {format_cpulist(self.helpers)}"


def pins_from_text(text: str, topology: Topology) -> Pins | None:
    """Return what a setting asks for; None: nothing. Raises SettingsError."""
    if text == OFF:
        return None
    if text == AUTO:
        return own_cores(topology)
    compute, slash, helpers = text.partition("/")
    chosen = _at(compute, topology)
    return Pins(chosen, _at(helpers, topology) if slash else chosen)


def pins_text(topology: Topology, compute: CoreSet, helpers: CoreSet) -> str:
    """Return the setting that asks for these cores."""
    parts = (compute.compute_cpus, helpers.cpus)
    return "/".join(format_cpulist(topology.positions(cpus)) for cpus in parts)


def own_cores(topology: Topology) -> Pins:
    """Divide a set of cores that nobody else uses, such as a container's."""
    plan = plan_node(topology, NodeRequest(gateway_cores=0, gpu_engine_cores=0))
    return Pins(plan.ranks[0].compute_cpus, plan.spare.cpus)


def _at(positions: str, topology: Topology) -> tuple[int, ...]:
    cpus = topology.cpus
    try:
        chosen = parse_cpulist(positions)
    except ValueError as error:
        raise SettingsError(f"cores: {error}; or off, or auto") from None
    if not chosen:
        raise SettingsError("cores: an empty list; give positions such as 0-3, off, or auto")
    if chosen[-1] >= len(cpus):
        raise SettingsError(f"cores: position {chosen[-1]}, but {len(cpus)} CPUs are allowed here")
    return tuple(cpus[position] for position in chosen)
