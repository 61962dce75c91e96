"""Which assist calls the GPU serves at a stage boundary: along with its own rows, or on their own.

An assist call asks for the dense stages between two attentions of one micro-batch of the host. The
GPU's own iteration sweeps the same layers. A call that waits where the sweep comes by rides in its
batch, and the weights are read once for both. A call waits for that only while the host has other
work; then it is served on its own at the next boundary, between two layers of the GPU's batch. All
that is bounded by the lease. The GPU never waits for the host.

Boundary `b` of `0..num_layers` lies before the dense stages that lead to attention `b`: the first
`pre_attention`, then `post_attention` and `pre_attention`, at last `post_attention` and the head.
"""

import math
from dataclasses import dataclass

from dualpace.scheduling.cost import GpuCosts
from dualpace.scheduling.lease import AssistLease


@dataclass(frozen=True, slots=True)
class AssistCall:
    """Dense stages at one boundary for one micro-batch."""

    micro_batch: int
    boundary: int
    rows: int
    arrived_s: float
    idle_at_s: float
    """When the host runs out of other work: waiting until then costs it nothing."""
    with_pre_attention: bool = True
    """False: the host projects Q, K and V itself, and gets the hidden state."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The GPU's own iteration as it stands: boundaries pass `layer_s` apart if undisturbed."""

    next_boundary: int
    next_boundary_s: float
    layer_s: float
    rows: int
    sampled_rows: int
    rest_s: float
    """What follows the last layer until the next sweep can start."""


@dataclass(frozen=True, slots=True)
class Service:
    """What happens at a boundary. Calls of one boundary that are served alone share one batch."""

    riding: tuple[AssistCall, ...] = ()
    riding_s: float = 0.0
    """By how much the sweep's own stage takes longer."""
    alone: tuple[AssistCall, ...] = ()
    alone_s: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether nobody is served."""
        return not (self.riding or self.alone)


class AssistDesk:
    """Calls that wait, and when each is served."""

    def __init__(self, costs: GpuCosts, lease: AssistLease, *, riding: bool = True) -> None:
        self._costs = costs
        self._lease = lease
        self._riding = riding
        self._waiting: list[AssistCall] = []
        self.rode = 0
        self.served_alone = 0
        self.busy_s = 0.0
        """GPU time that calls have taken."""

    @property
    def waiting(self) -> tuple[AssistCall, ...]:
        """Calls not served yet, in order of arrival."""
        return tuple(self._waiting)

    def arrive(self, call: AssistCall) -> None:
        """Take a call."""
        assert 0 <= call.boundary <= self._costs.num_layers
        self._waiting.append(call)

    def withdraw(self) -> None:
        """Forget every call: the host completes its iteration without help."""
        self._waiting.clear()

    def next_stop(self, sweep: Sweep) -> int | None:
        """Return the boundary of this sweep at which somebody is to be served next, if any."""
        stops = [s for call in self._waiting if (s := self._stop(call, sweep)) is not None]
        return min(stops, default=None)

    def serve(self, now: float, sweep: Sweep | None) -> Service:
        """Serve those whose boundary has come, or whose time is up; None: the GPU has no batch."""
        if not self._waiting:
            return Service()
        if sweep is None:
            return self._serve_alone(self._waiting[0], leased=False)
        if not self._lease.granted(now):
            return Service()
        here = sweep.next_boundary
        riders = tuple(c for c in self._waiting if self._riding and c.boundary == here)
        if riders:
            extra = self._riding_s(riders, sweep)
            self._waiting = [c for c in self._waiting if c not in riders]
            self.rode += len(riders)
            self.busy_s += extra
            self._lease.charge(extra)
            return Service(riding=riders, riding_s=extra)
        for call in self._waiting:
            if self._stop(call, sweep) == here:
                return self._serve_alone(call)
        return Service()

    def _stop(self, call: AssistCall, sweep: Sweep) -> int | None:
        """Where in this sweep a call is served; None: it waits for the next one."""
        ahead = call.boundary - sweep.next_boundary
        if not self._riding:
            meets_s = math.inf
        elif ahead >= 0:
            meets_s = sweep.next_boundary_s + ahead * sweep.layer_s
        else:
            meets_s = (
                sweep.next_boundary_s
                + (self._costs.num_layers + ahead) * sweep.layer_s
                + sweep.rest_s
            )
        if meets_s > call.idle_at_s:
            return sweep.next_boundary
        return call.boundary if ahead >= 0 else None

    def _serve_alone(self, first: AssistCall, *, leased: bool = True) -> Service:
        """Serve a call, and whoever waits at the same boundary, in one batch.

        Time that nobody else wants is not charged to the lease.
        """
        together = tuple(
            c
            for c in self._waiting
            if c.boundary == first.boundary and c.with_pre_attention == first.with_pre_attention
        )
        self._waiting = [c for c in self._waiting if c not in together]
        rows = sum(c.rows for c in together)
        seconds = assist_s(self._costs, first.boundary, rows, first.with_pre_attention)
        self.served_alone += len(together)
        self.busy_s += seconds
        if leased:
            self._lease.charge(seconds)
        return Service(alone=together, alone_s=seconds)

    def _riding_s(self, riders: tuple[AssistCall, ...], sweep: Sweep) -> float:
        """What the riders add to the sweep's own dense stages."""
        costs, here, own = self._costs, sweep.next_boundary, sweep.rows
        everyone = sum(c.rows for c in riders)
        seconds = 0.0
        if here > 0:
            seconds += costs.post_attention_s(own + everyone) - costs.post_attention_s(own)
        if here < costs.num_layers:
            projected = sum(c.rows for c in riders if c.with_pre_attention)
            seconds += costs.pre_attention_s(own + projected) - costs.pre_attention_s(own)
        else:
            sampled = sweep.sampled_rows
            seconds += costs.head_s(sampled + everyone) - costs.head_s(sampled)
        return seconds


def assist_s(costs: GpuCosts, boundary: int, rows: int, with_pre_attention: bool) -> float:
    """Return the GPU time of the dense stages at a boundary, on their own."""
    seconds = costs.post_attention_s(rows) if boundary > 0 else 0.0
    if boundary == costs.num_layers:
        return seconds + costs.head_s(rows)
    return seconds + (costs.pre_attention_s(rows) if with_pre_attention else 0.0)
