"""Simulated nodes: two engines with a clock each, or one alone."""

from collections.abc import Sequence
from typing import Protocol

from dualpace.core.messages import Submit
from dualpace.core.request import Request, SamplingParams
from dualpace.lab.gpu_clock import GpuClock
from dualpace.lab.host_clock import HostClock
from dualpace.lab.timeline import Timeline
from dualpace.lab.workload import Arrival

_GREEDY = SamplingParams(temperature=0.0)


class Node(Protocol):
    """Takes requests."""

    def submit(self, submit: Submit) -> None:
        """Take a new request."""
        ...


class TwoClocks:
    """A gpu-engine, and a cpu-engine unless `host` is None, with messages that take no time."""

    def __init__(self, gpu: GpuClock, host: HostClock | None) -> None:
        self.gpu = gpu
        self.host = host
        if host is not None:
            gpu.to_host = host.deliver
            host.start()

    def submit(self, submit: Submit) -> None:
        """Give a new request to the gpu-engine."""
        self.gpu.submit(submit)

    def check(self) -> None:
        """Assert that blocks, slots and owners agree."""
        self.gpu.scheduler.state.check_integrity()
        if self.host is not None:
            self.host.scheduler.check_integrity()


def submit_all(timeline: Timeline, node: Node, arrivals: Sequence[Arrival]) -> None:
    """Plan the arrival of every request."""
    for arrival in arrivals:
        request = Request(
            request_id=arrival.request_id,
            gateway_id=0,
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=arrival.output_tokens,
            sampling=_GREEDY,
            arrival_s=arrival.arrival_s,
        )
        submit = Submit(request, (0,) * arrival.prompt_tokens)
        timeline.at(arrival.arrival_s, lambda submit=submit: node.submit(submit))  # type: ignore[misc]
