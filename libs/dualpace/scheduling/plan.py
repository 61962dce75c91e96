"""What the schedulers decide for one iteration.

Plain values, complete enough to execute without asking back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dualpace.core.messages import (
    Commit,
    EngineEvent,
    HandoffCommand,
    HandoffEvent,
    TokenLogprobs,
)
from dualpace.core.request import FinishReason, Request
from dualpace.scheduling.route import Route


@dataclass(frozen=True, slots=True)
class GpuRow:
    """Work of one sequence in a GPU iteration: a prefill chunk, or one decode token."""

    request: Request
    slot: int
    """Row of the device block table; stays the same while the sequence is on the device."""
    start: int
    """Position of the first token computed here."""
    tokens: tuple[int, ...]
    blocks: Sequence[int]
    """Device blocks of the whole sequence, in order: the lease's own list, which only grows."""
    known_tokens: Sequence[int]
    """All token ids known so far: the sequence's own list, which only grows."""
    samples: bool
    """Whether the token that follows is sampled; else a later chunk does."""
    scored: range = range(0)
    """Positions of prompt tokens whose log-probabilities to report."""
    stream_to: Sequence[int] | None = None
    """Host blocks, in order, to which this chunk's KV is copied layer by layer; None: it stays."""

    @property
    def request_id(self) -> int:
        """The request's id."""
        return self.request.request_id


@dataclass(frozen=True, slots=True)
class KvCopy:
    """Move the KV of `num_positions` positions between device and host blocks, all layers."""

    request_id: int
    device_blocks: Sequence[int]
    host_blocks: Sequence[int]
    num_positions: int


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """One iteration of the gpu-engine.

    A row with `stream_to` and each copy end in one `transfer_done`.
    """

    rows: tuple[GpuRow, ...] = ()
    copies_out: tuple[KvCopy, ...] = ()
    copies_in: tuple[KvCopy, ...] = ()
    worth: float = 0.0
    """Decode tokens that this iteration brings, those included that its prompt tokens lead to."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to execute."""
        return not (self.rows or self.copies_out or self.copies_in)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this iteration."""
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True)
class HandoffCommit:
    """A commit to send once `tokens` stand in the arena's token ids of `host_blocks`."""

    commit: Commit
    host_blocks: Sequence[int]
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class GpuOutbox:
    """What the gpu-engine has to tell others, in order within each list."""

    events: tuple[EngineEvent, ...] = ()
    commands: tuple[HandoffCommand | HandoffCommit, ...] = ()


@dataclass(frozen=True, slots=True)
class HostRow:
    """One decode token of one sequence on the host."""

    request: Request
    slot: int
    position: int
    token_id: int

    @property
    def request_id(self) -> int:
        """The request's id."""
        return self.request.request_id


@dataclass(frozen=True, slots=True)
class TableWrite:
    """Blocks to enter into a slot's block table, from index `first` on."""

    slot: int
    first: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One iteration of the cpu-engine. The table writes come before the rows."""

    rows: tuple[HostRow, ...] = ()
    table_writes: tuple[TableWrite, ...] = ()
    micro_batches: tuple[int, ...] = ()
    """How many neighbouring rows make up each micro-batch; they may be run one after the other."""
    route: Route = Route.HOST


@dataclass(frozen=True, slots=True)
class Disposal:
    """A slot whose request the cpu-engine does not own, or not any more."""

    slot: int
    lent_tokens: int = 0
    """How many tokens its blocks are for, if the gpu-engine may copy to or from them; 0: free."""


@dataclass(frozen=True, slots=True)
class HostOutbox:
    """What the cpu-engine has to tell others, and what has become of slots, in order."""

    events: tuple[EngineEvent, ...] = ()
    handoff: tuple[HandoffEvent, ...] = ()
    disposals: tuple[Disposal, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """The token sampled for one row of a plan."""

    request_id: int
    token_id: int
    logprobs: TokenLogprobs | None = None
    assisted: bool = False
    """Whether the other engine computed the dense stages of its iteration."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of the prompt tokens at `start` and the positions after it."""

    request_id: int
    start: int
    tokens: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A row of a plan for which no token can be sampled; its request ends for this reason."""

    request_id: int
    message: str
    reason: FinishReason = FinishReason.ERROR


Result = PromptScores | Sample | Failure
"""What comes of a plan; a row's scores come before its sample."""
