"""A request as the cpu-engine's scheduler sees it, from its reservation until its slot is free."""

import enum
from dataclasses import dataclass, field

from dualpace.core.blocks import BlockLease
from dualpace.core.request import Request


class HostPhase(enum.Enum):
    """Who may write the blocks.

    The gpu-engine when RESERVED, the cpu-engine when RUNNING, nobody when PARKED or RETURNED. The
    cpu-engine owns what is RUNNING or PARKED.
    """

    RESERVED = enum.auto()
    RUNNING = enum.auto()
    PARKED = enum.auto()
    """Waits for its gateway: tokens made now would reach nobody."""
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
    device_knows: bool = False
    """Whether it was committed in the session with the gpu-engine that is open now, and so can be
    given back to it."""
    turned_round: bool = False
    """Whether it was given back and came again, without a token since."""

    @property
    def gateway_id(self) -> int:
        """The gateway of a request that has been committed."""
        assert self.request is not None
        return self.request.gateway_id

    @property
    def owned(self) -> bool:
        """Whether it is the cpu-engine's."""
        return self.phase in (HostPhase.RUNNING, HostPhase.PARKED)

    @property
    def first_own(self) -> int:
        """The first position whose token was made here, by this process."""
        return self.num_tokens - len(self.new_tokens)

    @property
    def age_key(self) -> tuple[int, float, int]:
        """Orders committed sequences, the most urgent first, then the oldest."""
        assert self.request is not None
        return self.request.rank
