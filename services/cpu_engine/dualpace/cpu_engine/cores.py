"""How many threads compute, and which processor each is tied to. Pure; `pinning` chose the CPUs."""

from dataclasses import dataclass

from dualpace.pinning import Pins, Topology

_FEW = 2
"""With so few cores none is left free: threads that wait take little, and a core is half of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePlan:
    """Who computes where."""

    num_threads: int
    cpus: tuple[int, ...]
    """Thread i's processor; empty: wherever the operating system puts them."""
    reason: str
    """Why threads are tied to processors or not, for the log."""


def plan_threads(topology: Topology, pins: Pins | None, *, threads: int) -> CorePlan:
    """Choose the number of compute threads and their processors.

    `threads` 0: one for each compute CPU of the pins. Without pins one for each physical core that
    the quota allows for, less one where those are more than two. Threads are tied one to one where
    pins give each a CPU of its own.
    """
    if pins is None:
        granted = len(topology.cores)
        if topology.quota_cpus is not None:
            granted = max(1, min(granted, int(topology.quota_cpus)))
        num_threads = threads or (granted - 1 if granted > _FEW else granted)
        return CorePlan(num_threads=num_threads, cpus=(), reason="cores=off")
    num_threads = threads or len(pins.compute)
    if num_threads > len(pins.compute):
        reason = f"{num_threads} threads share {len(pins.compute)} CPUs"
        return CorePlan(num_threads=num_threads, cpus=(), reason=reason)
    return CorePlan(
        num_threads=num_threads, cpus=pins.compute[-num_threads:], reason="one CPU a thread"
    )
