"""A request as the gpu-engine's scheduler sees it, from arrival to end, wherever it lives."""

import enum
from dataclasses import dataclass

from dualpace.core.blocks import BlockLease
from dualpace.core.sequence import Sequence
from dualpace.scheduling.host_ledger import HostHold


class Phase(enum.Enum):
    """Where a request stands. Only RUNNING ones are computed here.

    WAITING -> RUNNING (prefill) or ARRIVING (its KV is on the host) or AWAY (given straight back to
      the host)
    RUNNING -> LEAVING (KV on its way out), WAITING (preempted), or ended
    LEAVING -> AWAY (committed);  AWAY -> WAITING (returned);  ARRIVING -> RUNNING
    if the host dies: LEAVING -> RUNNING, ARRIVING -> WAITING, once the copy has completed
    any but AWAY -> CLOSING: ended, while a copy still touches its blocks
    """

    WAITING = enum.auto()
    RUNNING = enum.auto()
    LEAVING = enum.auto()
    AWAY = enum.auto()
    ARRIVING = enum.auto()
    CLOSING = enum.auto()


@dataclass(slots=True, eq=False)
class GpuSequence(Sequence):
    """Token ids, phase, and what the request holds on the device and on the host."""

    phase: Phase = Phase.WAITING
    computed: int = 0
    """Positions whose KV is in the device blocks."""
    lease: BlockLease | None = None
    slot: int | None = None
    host: HostHold | None = None
    bound_for_host: bool = False
    """What is computed of it streams KV to the host, and it is committed with its next token."""
    started: bool = False
    """Whether it was ever computed."""
    scored: int = 0
    """Prompt tokens whose log-probabilities have been reported, the first one, which has none,
    included."""
    copies_in_flight: int = 0
    recall_sent: bool = False
    cancelled: bool = False
    """Cancelled while AWAY: closed as soon as the host gives it back."""
    from_host: range = range(0)
    """Positions that include every token which came with the request from the cpu-engine in this
    session: its gateway may not have heard of them, if that engine dies."""

    @property
    def pending(self) -> int:
        """Known tokens whose KV is not computed yet: 1 when decoding."""
        return self.num_tokens - self.computed

    @property
    def host_granted(self) -> bool:
        """Whether a host reservation is held."""
        return self.host is not None and self.host.blocks is not None

    @property
    def kv_on_host(self) -> bool:
        """Whether the host gave the request back with its KV."""
        return self.host is not None and self.host.kv_tokens > 0

    def unscored(self, start: int, count: int) -> range:
        """Return the prompt positions that a chunk's logits tell about and nobody was told of.

        The logits of a position are about the token after it.
        """
        if self.request.prompt_logprobs is None:
            return range(0)
        begin = max(start + 1, self.scored)
        return range(begin, max(begin, min(start + count + 1, self.request.prompt_tokens)))
