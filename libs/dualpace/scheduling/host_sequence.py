"""A request as the cpu-engine's scheduler sees it, from its reservation until its slot is free."""

import enum
from dataclasses import dataclass, field

from dualpace.core.blocks import BlockLease
from dualpace.core.request import Request


class HostPhase(enum.Enum):
    """Who may write the blocks.

    The gpu-engine when RESERVED, the cpu-engine when RUNNING, nobody when RETURNED.
    """

    RESERVED = enum.auto()
    RUNNING = enum.auto()
    RETURNED = enum.auto()


@dataclass(slots=True, eq=False)
class HostSequence:
    """A slot of the sequence table, and the request in it."""

    request_id: int
    slot: int
    lease: BlockLease
    phase: HostPhase = HostPhase.RESERVED
    request: Request | None = None
    num_tokens: int = 0
    last_token: int = 0
    new_tokens: list[int] = field(default_factory=list)
    """Generated since the commit."""
    return_at: int | None = None

    @property
    def age_key(self) -> tuple[int, float, int]:
        """Orders committed sequences, the most urgent first, then the oldest."""
        assert self.request is not None
        return self.request.rank
