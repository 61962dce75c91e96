"""The gpu-engine's picture of the host.

How full it last said it was, and what has been asked of it since.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dualpace.core.blocks import blocks_for
from dualpace.core.messages import HandoffCommand, HostStatus, Release, Reserve, Reserved, Returned
from dualpace.core.request import Request
from dualpace.scheduling.plan import HandoffCommit


@dataclass(slots=True)
class HostHold:
    """Host memory held for one request. `blocks` is None until the reservation is granted."""

    num_tokens: int
    slot: int | None = None
    blocks: Sequence[int] | None = None
    kv_tokens: int = 0
    """Positions whose KV the blocks hold; above zero only after the host gave the request back."""


class HostLedger:
    """Reservations and their bookkeeping. Commands go out through `send`, in order."""

    def __init__(
        self, block_size: int, send: Callable[[HandoffCommand | HandoffCommit], None]
    ) -> None:
        self._block_size = block_size
        self._send = send
        self._status: HostStatus | None = None
        self._asked: dict[int, int] = {}
        """Blocks asked for and not yet answered, by request."""

    @property
    def connected(self) -> bool:
        """Whether the host has said anything yet, and was not lost since."""
        return self._status is not None

    @property
    def total_blocks(self) -> int:
        """Host blocks in all; zero when not connected."""
        return self._status.total_blocks if self._status else 0

    @property
    def running(self) -> int:
        """Sequences the host is decoding, as last reported."""
        return self._status.running if self._status else 0

    def update(self, status: HostStatus) -> None:
        """Take the host's latest word."""
        self._status = status

    def lost(self) -> None:
        """Forget everything: the host is gone."""
        self._status = None
        self._asked.clear()

    def has_room(self, num_tokens: int) -> bool:
        """Whether a reservation for `num_tokens` would be granted, as far as is known."""
        if self._status is None:
            return False
        free_slots = self._status.free_slots - len(self._asked)
        free_blocks = self._status.free_blocks - sum(self._asked.values())
        return free_slots > 0 and blocks_for(num_tokens, self._block_size) <= free_blocks

    def reserve(self, request: Request, num_tokens: int) -> HostHold:
        """Ask for room; the answer comes as an event."""
        self._asked[request.request_id] = blocks_for(num_tokens, self._block_size)
        self._send(Reserve(request.request_id, num_tokens, request.sampling.grammar))
        return HostHold(num_tokens)

    def answered(self, request_id: int) -> None:
        """Note that a reservation was granted or refused."""
        self._asked.pop(request_id, None)

    def grant(self, hold: HostHold, granted: Reserved) -> None:
        """Enter slot and blocks into a hold."""
        hold.slot, hold.blocks = granted.slot, granted.blocks

    @staticmethod
    def hold_returned(returned: Returned) -> HostHold:
        """Return the hold on a request that came back with its KV still in host blocks."""
        return HostHold(
            returned.num_tokens, blocks=returned.blocks, kv_tokens=returned.num_tokens - 1
        )

    def release(self, request_id: int) -> None:
        """Give up a reservation, answered or not, or the blocks of a returned request."""
        self._send(Release(request_id))
