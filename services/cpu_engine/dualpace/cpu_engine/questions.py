"""Answers gateways that ask whether this engine owns a request whose gpu-engine was lost.

The answer "no" is final: the gateway then has the request computed again. So it waits while a
session with the gpu-engine in question is open, out of which a commit may still come.
"""

from dualpace.core.messages import Ask, Ownership, TokenEvent
from dualpace.ipc.arena import Arena
from dualpace.scheduling.cpu import HostScheduler
from dualpace.scheduling.host_sequence import HostSequence


class Questions:
    """Questions that were put; answers go out among the scheduler's own events, in order."""

    def __init__(self, scheduler: HostScheduler, arena: Arena, *, resumed: bool) -> None:
        """`resumed`: this process went on with what another one began."""
        self._scheduler = scheduler
        self._arena = arena
        self._resumed = resumed
        self._device: int | None = None
        self._held: list[Ask] = []

    def device_joined(self, device: int) -> None:
        """Note whose commits may come."""
        self._device = device

    def device_left(self) -> None:
        """Answer what was held back: no more commits will come."""
        self._device = None
        held, self._held = self._held, []
        for ask in held:
            self.put(ask)

    def put(self, ask: Ask) -> None:
        """Take a question."""
        if ask.device and ask.device == self._device:
            self._held.append(ask)
            return
        sequence = self._scheduler.owned(ask.request_id)
        owned = sequence is not None and self._complete(sequence, ask)
        self._scheduler.tell(Ownership(ask.gateway_id, ask.request_id, owned, ask.serial))

    def _complete(self, sequence: HostSequence, ask: Ask) -> bool:
        """Send tokens that the gateway may lack; give the request up if that cannot be done.

        Tokens made here were sent in order. The log-probabilities of others are not known here.
        """
        missing = range(ask.next_position, sequence.first_own)
        if not missing:
            return True
        assert sequence.request is not None
        if sequence.request.sampling.logprobs is not None:
            if not sequence.device_knows:
                self._scheduler.disown(ask.request_id)
            return sequence.device_knows
        token_ids = self._arena.tokens_of(sequence.slot, missing.start, missing.stop)
        for position, token_id in zip(missing, token_ids, strict=True):
            self._scheduler.tell(
                TokenEvent(
                    sequence.gateway_id,
                    sequence.request_id,
                    position,
                    token_id,
                    repeat=not self._resumed,
                )
            )
        return True
