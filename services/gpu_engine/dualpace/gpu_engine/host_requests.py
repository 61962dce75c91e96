"""Which request the host has in a slot, as the arena says it."""

from dualpace.core.request import Request
from dualpace.gpu_engine.dense_assist import AssistCallError
from dualpace.ipc.arena import Arena


class HostRequests:
    """Requests by slot; each is decoded once."""

    def __init__(self, arena: Arena) -> None:
        self._sequences = arena.sequences
        self._requests: dict[int, Request] = {}
        """By slot, as last read."""

    def of(self, slot: int) -> Request:
        """Return the request in a slot. Raises AssistCallError if there is none."""
        request_id = self._sequences.request_id(slot)
        if request_id is None:
            raise AssistCallError(f"slot {slot} is empty")
        request = self._requests.get(slot)
        if request is None or request.request_id != request_id:
            request = self._requests[slot] = self._sequences.read(slot)[0]
        return request
