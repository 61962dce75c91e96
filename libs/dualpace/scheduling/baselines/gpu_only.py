"""One engine, everything on the device, scheduled by the rules of vLLM's v1 scheduler.

A token budget an iteration. Running requests come first, in order of admission, each with as many
of its uncomputed tokens as the budget has left; prompts are chunked by that alone. When blocks run
out, the youngest running request is preempted and recomputed from the start. Waiting requests are
admitted in order while budget, rows and blocks last, a prompt only if it would fit as a whole, and
nobody in an iteration that preempted. Blocks are taken for the tokens of this iteration only.

Rules as of vLLM 0.33 (vllm/v1/core/sched/scheduler.py) with its defaults: first come first served,
watermark 0, no limit on long prefills. Prefix caching is left out.
"""

from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.gpu_rows import next_row
from dualpace.scheduling.gpu_sequence import GpuSequence
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.placement import GpuOnly
from dualpace.scheduling.plan import GpuPlan, GpuRow


class GpuOnlyScheduler(GpuScheduler):
    """The interface of our gpu-engine's scheduler, with vLLM's decisions."""

    def __init__(self, limits: GpuLimits, *, watermark: float = 0.0) -> None:
        super().__init__(limits, GpuOnly())
        self._watermark_blocks = int(watermark * limits.num_blocks)

    def schedule(self, now: float) -> GpuPlan:
        """Decide one iteration. Everything in the plan is executed, then `apply` is called."""
        del now
        rows: list[GpuRow] = []
        preemptions = self.state.preemptions
        budget = self._continue_running(rows, self.state.limits.token_budget)
        if self.state.preemptions == preemptions:
            self._admit(rows, budget)
        return GpuPlan(tuple(rows))

    def _continue_running(self, rows: list[GpuRow], budget: int) -> int:
        running = self.state.running
        index = 0
        while index < len(running) and budget:
            sequence = running[index]
            count = min(sequence.pending, budget)
            if not self._hold_blocks(sequence, sequence.computed + count):
                break
            rows.append(next_row(sequence, count))
            budget -= count
            index += 1
        return budget

    def _hold_blocks(self, sequence: GpuSequence, num_tokens: int) -> bool:
        """Grow to `num_tokens` tokens, preempting from the end. False: it was preempted itself."""
        assert sequence.lease is not None
        missing = self.state.device_blocks_for(num_tokens) - len(sequence.lease)
        while missing > self.state.free_device_blocks:
            victim = self.state.running[-1]
            self.state.preempt(victim)
            if victim is sequence:
                return False
        if missing > 0:
            self.state.grow(sequence, missing)
        return True

    def _admit(self, rows: list[GpuRow], budget: int) -> None:
        while self.state.waiting and budget:
            sequence = self.state.waiting[0]
            whole = self.state.device_blocks_for(sequence.num_tokens)
            count = min(sequence.pending, budget)
            if whole + self._watermark_blocks > self.state.free_device_blocks:
                return
            if not self.state.take_device(sequence, count):
                return
            self.state.start_running(sequence)
            rows.append(next_row(sequence, count))
            budget -= count
