"""A simulated NEO node: one schedule clocks GPU and CPU.

A sequential iteration takes what the GPU takes. In a pair, each batch attends on the CPU while the
GPU works on the other; per layer the slower side of either half rules (Jiang et al., MLSys 2025).
The CPU's part of a half costs `launch_ms` beside its attention. That is what the node really pays;
what its scheduler believes is a setting of the scheduler.
"""

from dualpace.core.messages import Submit
from dualpace.lab.recorder import Recorder
from dualpace.lab.timeline import Timeline
from dualpace.scheduling.baselines.neo import NeoBatch, NeoPlan, NeoScheduler
from dualpace.scheduling.cost import NodeCosts, chunk_pairs
from dualpace.scheduling.plan import Sample


class Lockstep:
    """Runs NEO's scheduler in virtual time."""

    def __init__(
        self,
        timeline: Timeline,
        costs: NodeCosts,
        scheduler: NeoScheduler,
        recorder: Recorder,
        *,
        launch_ms: float,
    ) -> None:
        self.scheduler = scheduler
        self._timeline = timeline
        self._costs = costs
        self._recorder = recorder
        self._launch_s = launch_ms / 1e3
        self._plan: NeoPlan | None = None
        self._began_s = 0.0

    def submit(self, submit: Submit) -> None:
        """Take a new request."""
        self.scheduler.submit(submit)
        if self._plan is None:
            self._begin()

    def step_s(self, plan: NeoPlan) -> float:
        """Return the time of an iteration; swaps overlap it as far as it is longer."""
        gpu = self._costs.gpu
        swapped = max(
            self._costs.link.kv_to_host_s(sum(s.num_tokens for s in plan.swap_out)),
            self._costs.link.kv_to_device_s(sum(s.num_tokens for s in plan.swap_in)),
        )
        sampled = sum(1 for batch in plan.batches for _ in batch.members())
        layers = gpu.num_layers * self._layer_s(plan)
        return max(swapped, gpu.step_overhead_s + layers + gpu.head_s(sampled))

    def _layer_s(self, plan: NeoPlan) -> float:
        dense = [self._costs.gpu.dense_layer_s(batch.width) for batch in plan.batches]
        gpu = [self._attention_s(batch) for batch in plan.batches]
        cpu = [self._cpu_s(batch) for batch in plan.batches]
        if len(plan.batches) == 1:
            return dense[0] + gpu[0] + cpu[0]
        return max(dense[1] + gpu[0], cpu[0]) + max(dense[0] + gpu[1], cpu[1])

    def _attention_s(self, batch: NeoBatch) -> float:
        prompts = (*batch.gprf, *batch.cprf)
        pairs = sum(chunk_pairs(0, s.num_tokens) for s in prompts)
        kv_tokens = sum(s.num_tokens for s in batch.gdec)
        gpu = self._costs.gpu
        return gpu.prefill_layer_s(pairs) + gpu.attention_layer_s(len(batch.gdec), kv_tokens)

    def _cpu_s(self, batch: NeoBatch) -> float:
        if not batch.cdec:
            return 0.0
        kv_tokens = sum(s.num_tokens for s in batch.cdec)
        return self._launch_s + self._costs.host.attention_layer_s(len(batch.cdec), kv_tokens)

    def _begin(self) -> None:
        now = self._timeline.now
        plan = self.scheduler.schedule(now)
        self._recorder.host_residents(len(self.scheduler.cpu), now)
        if plan.empty and not (plan.swap_in or plan.swap_out):
            self._plan = None  # also with requests on the CPU: they wait for company
            return
        self._plan = plan
        for sequence in (*plan.swap_out, *(s for b in plan.batches for s in b.cprf)):
            self._recorder.given_to_host(sequence.request_id)
        self._began_s = now
        self._timeline.at(now + self.step_s(plan), self._end)

    def _end(self) -> None:
        plan = self._plan
        assert plan is not None
        now = self._timeline.now
        self._recorder.gpu_busy_s += now - self._began_s
        on_cpu = [Sample(s.request_id, 0) for b in plan.batches for s in b.cdec]
        decodes = sum(len(b.gdec) + len(b.cdec) for b in plan.batches)
        self._recorder.gpu_steps.append(
            (now, decodes, sum(b.width for b in plan.batches) - decodes)
        )
        if on_cpu:
            self._recorder.host_step(self._began_s, now, len(on_cpu))
            self.scheduler.apply(on_cpu)
            self._recorder.receive(self.scheduler.drain(), now, host=True)
        elsewhere = [
            Sample(s.request_id, 0) for b in plan.batches for s in (*b.gprf, *b.cprf, *b.gdec)
        ]
        self.scheduler.apply(elsewhere)
        self._recorder.receive(self.scheduler.drain(), now)
        self._begin()
