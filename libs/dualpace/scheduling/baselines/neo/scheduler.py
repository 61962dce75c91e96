"""NEO's scheduler: three queues, swaps, admission, and the mode decision.

A request's KV lies wholly on the GPU or wholly on the CPU, and every decode is clocked by the GPU's
iterations. It knows token counts, not block ids.
"""

from collections import deque
from collections.abc import Iterable

from dualpace.core.blocks import blocks_for
from dualpace.core.errors import CapacityError
from dualpace.core.messages import EngineEvent, FinishEvent, Submit, TokenEvent
from dualpace.core.request import FinishReason
from dualpace.core.sequence import Sequence
from dualpace.scheduling.baselines.neo import gpu_first
from dualpace.scheduling.baselines.neo.config import NeoConfig
from dualpace.scheduling.baselines.neo.decision import Budget, decide
from dualpace.scheduling.baselines.neo.plan import NeoPlan
from dualpace.scheduling.baselines.neo.predictor import NeoPredictor
from dualpace.scheduling.plan import Sample


class NeoScheduler:
    """Both engines' schedule in one: its plans drive GPU and CPU in lockstep."""

    def __init__(self, config: NeoConfig, predictor: NeoPredictor) -> None:
        self.config = config
        self._predictor = predictor
        self.waiting: deque[Sequence] = deque()
        self.gpu: list[Sequence] = []
        self.cpu: deque[Sequence] = deque()
        self._sequences: dict[int, Sequence] = {}
        self._events: list[EngineEvent] = []

    @property
    def free_ids(self) -> int:
        """Requests that may still get an id."""
        return self.config.max_seqs_in_block_table - len(self.gpu) - len(self.cpu)

    def blocks(self, sequence: Sequence) -> int:
        """KV blocks of a request, the newest token included."""
        return blocks_for(sequence.num_tokens, self.config.block_size)

    # Events.

    def submit(self, submit: Submit) -> None:
        """Take a new request."""
        sequence = Sequence(submit.request, list(submit.prompt))
        self._sequences[sequence.request_id] = sequence
        self.waiting.append(sequence)

    def cancel(self, request_id: int) -> None:
        """Stop a request; unknown ids are ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.CANCELLED)

    # Decisions.

    def schedule(self, now: float) -> NeoPlan:
        """Decide one iteration. It is executed, then `apply` is called."""
        del now
        if self.config.always_use_gpu:
            return gpu_first.schedule(self)
        budget = Budget(
            self.config.max_batch_size - len(self.gpu),
            self.config.max_tokens_in_batch - len(self.gpu),
        )
        used, swap_out = self._swap_out(budget)
        used, swap_in = self._swap_in(budget, used)
        assert not (swap_in and swap_out)
        gprf, cprf = self._admissible(budget, used)
        batches = decide(
            self.config,
            self._predictor,
            gprf=gprf,
            cprf=cprf,
            gdec=self.gpu,
            cpu_queue=self.cpu,
            budget=budget,
        )
        launched = sum(len(b.gprf) + len(b.cprf) for b in batches)
        self.launch(gprf[:launched], cprf[: max(0, launched - len(gprf))])
        return NeoPlan(batches, tuple(swap_out), tuple(swap_in))

    def apply(self, results: Iterable[Sample]) -> None:
        """Take a token for every member of the executed batches, in their order."""
        for result in results:
            sequence = self._sequences.get(result.request_id)
            if sequence is None:
                continue  # cancelled while the plan ran
            position = sequence.num_tokens
            reason = sequence.append(result.token_id)
            self._events.append(
                TokenEvent(sequence.gateway_id, sequence.request_id, position, result.token_id)
            )
            if reason is not None:
                self._finish(sequence, reason)

    def drain(self) -> tuple[EngineEvent, ...]:
        """Return what is to be told to gateways since the last call."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def launch(self, gprf: list[Sequence], cprf: list[Sequence]) -> None:
        """Move prompts from the head of the waiting queue to the decode queues.

        Raises CapacityError, changing nothing, where the original would run out of ids.
        """
        if not self.config.always_use_gpu and len(gprf) + len(cprf) > self.free_ids:
            raise CapacityError(f"{len(gprf) + len(cprf)} prompts, {self.free_ids} free ids")
        for sequence in (*gprf, *cprf):
            assert self.waiting[0] is sequence
            self.waiting.popleft()
        self.gpu.extend(gprf)
        self.cpu.extend(cprf)

    def _swap_out(self, budget: Budget) -> tuple[int, list[Sequence]]:
        used = sum(map(self.blocks, self.gpu))
        victims: list[Sequence] = []
        while self.gpu and (budget.overdrawn or used > self.config.resident_blocks):
            victim = self.gpu.pop()
            self.cpu.appendleft(victim)
            victims.append(victim)
            used -= self.blocks(victim)
            budget.charge(-1, -1)
        return used, victims

    def _swap_in(self, budget: Budget, used: int) -> tuple[int, list[Sequence]]:
        arrivals: list[Sequence] = []
        while self.cpu:
            blocks = self.blocks(self.cpu[0])
            if used + blocks > self.config.swap_in_blocks or not budget.fits(1):
                break
            arrival = self.cpu.popleft()
            self.gpu.append(arrival)
            arrivals.append(arrival)
            used += blocks
            budget.charge(1)
        return used, arrivals

    def _admissible(self, budget: Budget, used: int) -> tuple[list[Sequence], list[Sequence]]:
        """Walk the waiting queue until a limit stops it; charge what would be admitted."""
        gprf: list[Sequence] = []
        cprf: list[Sequence] = []
        bounced = 0
        cpu_blocks = sum(map(self.blocks, self.cpu)) if self.waiting else 0
        for index, sequence in enumerate(self.waiting):
            blocks = self.blocks(sequence)
            if (
                bounced + blocks > self.config.bounce_blocks
                or cpu_blocks + blocks > self.config.admission_cpu_blocks
                # The original's index is off by one: with k ids free, k + 1 pass.
                or self.free_ids < index
                or not budget.fits(sequence.num_tokens)
            ):
                break
            budget.charge(sequence.num_tokens)
            if not cprf and used + blocks <= self.config.resident_blocks:
                gprf.append(sequence)
                used += blocks
            else:
                cprf.append(sequence)
                cpu_blocks += blocks
                bounced += blocks
        return gprf, cprf

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        for queue in (self.gpu, self.cpu, self.waiting):
            if sequence in queue:
                queue.remove(sequence)
                break
        del self._sequences[sequence.request_id]
        self._events.append(
            FinishEvent(sequence.gateway_id, sequence.request_id, sequence.num_tokens, reason)
        )
