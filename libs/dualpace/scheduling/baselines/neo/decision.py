"""NEO's mode decision: one batch on the GPU, or two that keep GPU and CPU busy in turn."""

from collections.abc import Iterable
from dataclasses import dataclass

from dualpace.core.sequence import Sequence
from dualpace.scheduling.baselines.neo.batch import BatchDraft, slack_ms
from dualpace.scheduling.baselines.neo.config import NeoConfig
from dualpace.scheduling.baselines.neo.plan import NeoBatch
from dualpace.scheduling.baselines.neo.predictor import NeoPredictor

_MIN_WIDTH = 128
"""Trimming prompts stops before a batch is narrower than this: the dense stages stay efficient."""


@dataclass(slots=True)
class Budget:
    """Rows and tokens that an iteration still has; may be overdrawn by the GPU's decodes."""

    rows: int
    tokens: int

    def fits(self, tokens: int) -> bool:
        """Whether one more request with `tokens` tokens fits."""
        return self.rows >= 1 and self.tokens >= tokens

    def charge(self, tokens: int, rows: int = 1) -> None:
        """Take from it; negative numbers give back."""
        self.rows -= rows
        self.tokens -= tokens

    @property
    def overdrawn(self) -> bool:
        """Whether more was charged than there was."""
        return self.rows < 0 or self.tokens < 0


def decide(
    config: NeoConfig,
    predictor: NeoPredictor,
    *,
    gprf: list[Sequence],
    cprf: list[Sequence],
    gdec: list[Sequence],
    cpu_queue: Iterable[Sequence],
    budget: Budget,
) -> tuple[NeoBatch, ...]:
    """Choose the batches of an iteration from admitted prompts and both decode queues."""
    partial = config.resident_blocks > 0
    first = BatchDraft(predictor)
    first.fill(gprf, cprf, gdec)
    if not first.rows and partial:
        return ()
    sequential = BatchDraft(predictor)
    sequential.fill(gprf, cprf, gdec)
    _trim(sequential)
    second = BatchDraft(predictor)
    _spread_cpu_decodes(config, first, second, cpu_queue, budget)
    if not partial:
        return tuple(b.finished() for b in (first, second) if b.rows)
    if not second.rows:
        return (sequential.finished(),)
    _trim(first, second, config.launch_ms)
    sequential_rate = sequential.rows / (sequential.gpu_ms * config.num_layers)
    pair_rate = (first.rows + second.rows) / ((first.gpu_ms + second.gpu_ms) * config.num_layers)
    if pair_rate > sequential_rate:
        return (first.finished(), second.finished())
    return (sequential.finished(),)


def _trim(batch: BatchDraft, other: BatchDraft | None = None, launch_ms: float = 0.0) -> None:
    """Take prompts bound for the CPU out, newest first, as long as the batch stays wide enough.

    With another batch, only as long as neither slack turns negative.
    """
    while batch.cprf:
        prompt = batch.pop_cpu_prompt()
        short = batch.width < _MIN_WIDTH
        if not short and other is not None:
            short = min(slack_ms(batch, other, launch_ms), slack_ms(other, batch, launch_ms)) < 0
        if short:
            batch.put_back(prompt)
            return


def _spread_cpu_decodes(
    config: NeoConfig,
    first: BatchDraft,
    second: BatchDraft,
    cpu_queue: Iterable[Sequence],
    budget: Budget,
) -> None:
    """Give each batch CPU decodes as far as the GPU's work on the other one hides them."""
    target = second
    shortest_rejected: int | None = None
    for decode in cpu_queue:
        if not budget.fits(1):
            return
        if shortest_rejected is not None and decode.num_tokens >= shortest_rejected:
            continue
        target.add_cpu_decode(decode)
        slack_first = slack_ms(first, second, config.launch_ms)
        slack_second = slack_ms(second, first, config.launch_ms)
        if config.resident_blocks > 0 and min(slack_first, slack_second) < 0:
            target.pop_cpu_decode()
            shortest_rejected = decode.num_tokens
            continue
        budget.charge(1)
        target = second if slack_second > slack_first else first
