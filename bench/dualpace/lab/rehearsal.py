"""Dense Assist call by call: one host batch, over and over, beside one kind of GPU iteration.

Runs of whole workloads let an assisted iteration take what `RouteCosts.forecast` predicts, and
slow the GPU down by the share it predicts. Here every call of every layer is served by the
`AssistDesk` at a stage boundary, alone or riding, so that the prediction can be checked.
"""

import math
from dataclasses import dataclass

from dualpace.lab.timeline import Timeline
from dualpace.scheduling.assist import AssistCall, AssistDesk, Service, Sweep
from dualpace.scheduling.cost import GpuWork, NodeCosts
from dualpace.scheduling.lease import AssistLease
from dualpace.scheduling.micro_batches import balanced_split
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts, offer


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """Means over iterations of the host."""

    host_s: float
    gpu_s: float
    riding_share: float


class Rehearsal:
    """A host batch of `rows` rows with `context` KV tokens each, and the GPU's own work, if any."""

    def __init__(
        self, costs: NodeCosts, routes: RouteCosts, rows: int, context: int, work: GpuWork | None
    ) -> None:
        self._timeline = Timeline()
        self._gpu = costs.gpu
        self._link = costs.link
        self._overhead_s = costs.host.step_overhead_s
        self._desk = AssistDesk(costs.gpu, AssistLease(share=1.0))
        self._work = work
        self._layer_s = 0.0 if work is None else costs.gpu.layer_s(work)
        terms = offer(costs.gpu, work, share=1.0)
        forecast = routes.forecast(Route.ASSIST, rows, rows * context, terms)
        self._sizes = balanced_split([context] * rows, forecast.micro_batches)
        self._cpu_s = [routes.cpu_stage_s(Route.ASSIST, s, s * context) for s in self._sizes]
        self._ready: list[int] = []
        """Micro-batches that wait for the CPU."""
        self._boundary = [0] * len(self._sizes)
        self._cpu_free_s = 0.0
        self._cpu_busy = False
        self._going = 0
        self._began: list[float] = []
        self._gpu_busy = False
        self._next_boundary = 0
        self._next_boundary_s = 0.0
        self._plans = 0
        """Counts the GPU's plans: an earlier one is void."""

    def run(self, iterations: int) -> Rehearsed:
        """Run so many iterations of the host."""
        if self._work is not None:
            self._begin_sweep()
        self._begin()
        while len(self._began) <= iterations:
            assert self._timeline.step(), "the calls are stuck"
        calls = self._desk.rode + self._desk.served_alone
        return Rehearsed(
            host_s=(self._began[-1] - self._began[0]) / iterations,
            gpu_s=self._desk.busy_s / iterations,
            riding_share=self._desk.rode / calls,
        )

    # The host.

    def _begin(self) -> None:
        self._began.append(self._timeline.now)
        self._going = len(self._sizes)
        for micro_batch in range(len(self._sizes)):
            self._boundary[micro_batch] = 0
            self._call_after(self._overhead_s, micro_batch)

    def _call_after(self, seconds: float, micro_batch: int) -> None:
        up_s = self._link.assist_up_s(self._sizes[micro_batch])
        self._timeline.at(self._timeline.now + seconds + up_s, lambda: self._arrive(micro_batch))

    def _arrive(self, micro_batch: int) -> None:
        now = self._timeline.now
        queued = sum(self._cpu_s[other] for other in self._ready)
        self._desk.arrive(
            AssistCall(
                micro_batch=micro_batch,
                boundary=self._boundary[micro_batch],
                rows=self._sizes[micro_batch],
                arrived_s=now,
                idle_at_s=max(now, self._cpu_free_s) + queued,
            )
        )
        self._gpu_wake()

    def _answer(self, micro_batch: int) -> None:
        if self._boundary[micro_batch] == self._gpu.num_layers:
            self._going -= 1
            if not self._going:
                self._begin()
            return
        self._ready.append(micro_batch)
        self._cpu_next()

    def _cpu_next(self) -> None:
        if self._cpu_busy or not self._ready:
            return
        micro_batch = self._ready.pop(0)
        self._cpu_busy = True
        self._cpu_free_s = self._timeline.now + self._cpu_s[micro_batch]

        def done() -> None:
            self._cpu_busy = False
            self._boundary[micro_batch] += 1
            self._call_after(0.0, micro_batch)
            self._cpu_next()

        self._timeline.at(self._cpu_free_s, done)

    # The GPU.

    def _begin_sweep(self) -> None:
        self._next_boundary = 0
        self._next_boundary_s = self._timeline.now + self._gpu.step_overhead_s
        self._plan_gpu()

    def _sweep(self) -> Sweep | None:
        if self._work is None:
            return None
        rest_s = self._gpu.head_s(self._work.sampled_rows) + self._gpu.step_overhead_s
        return Sweep(
            self._next_boundary,
            self._next_boundary_s,
            self._layer_s,
            self._work.rows,
            self._work.sampled_rows,
            rest_s,
        )

    def _gpu_wake(self) -> None:
        """A call arrived: the GPU looks at it at the next boundary, or now if it has no batch."""
        if self._work is None:
            if not self._gpu_busy:
                self._serve()
            return
        behind = (self._timeline.now - self._next_boundary_s) / self._layer_s
        passed = max(0, math.ceil(behind))
        if self._next_boundary + passed <= self._gpu.num_layers:
            self._next_boundary += passed
            self._next_boundary_s += passed * self._layer_s
            self._plan_gpu()

    def _plan_gpu(self) -> None:
        sweep = self._sweep()
        assert sweep is not None
        self._plans += 1
        number = self._plans
        stop = self._desk.next_stop(sweep)
        last = self._gpu.num_layers if stop is None else stop
        at_s = sweep.next_boundary_s + (last - sweep.next_boundary) * self._layer_s

        def reach() -> None:
            if number == self._plans:
                self._next_boundary, self._next_boundary_s = last, at_s
                self._serve()

        self._timeline.at(at_s, reach)

    def _serve(self) -> None:
        service = self._desk.serve(self._timeline.now, self._sweep())
        self._send(service)
        if self._work is None:
            self._gpu_busy = not service.empty
            if not service.empty:
                self._timeline.at(self._timeline.now + service.alone_s, self._serve)
            return
        if service.alone:  # the sweep's own stages follow
            self._next_boundary_s += service.alone_s
            self._plan_gpu()
        elif self._next_boundary == self._gpu.num_layers:
            head_s = self._gpu.head_s(self._work.sampled_rows)
            self._plans += 1
            self._next_boundary += 1  # past the last: calls wait for the next sweep
            self._timeline.at(self._timeline.now + head_s + service.riding_s, self._begin_sweep)
        else:
            self._next_boundary += 1
            self._next_boundary_s += self._layer_s + service.riding_s
            self._plan_gpu()

    def _send(self, service: Service) -> None:
        own_s = 0.0 if self._work is None else self._gpu.dense_layer_s(self._work.rows)
        for call in (*service.riding, *service.alone):
            seconds = service.alone_s if call in service.alone else own_s + service.riding_s
            seconds += self._link.assist_down_s(call.rows)
            self._timeline.at(
                self._timeline.now + seconds,
                lambda m=call.micro_batch: self._answer(m),  # type: ignore[misc]
            )
