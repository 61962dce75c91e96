"""State of the gpu-engine's scheduler: queues, blocks, slots and the transitions between phases.

Each transition keeps queues, leases and phase in step, and says what others must be told. When to
make one is decided in `gpu`.
"""

import bisect
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from dualpace.core.blocks import BlockAllocator, blocks_for
from dualpace.core.errors import CapacityError
from dualpace.core.messages import (
    Commit,
    EngineEvent,
    FinishEvent,
    HandoffCommand,
    Ownership,
    Recall,
    ReturnCause,
    Returned,
    StartEvent,
    TokenEvent,
)
from dualpace.core.request import FinishReason
from dualpace.scheduling.answers import AnswerLength
from dualpace.scheduling.gpu_sequence import GpuSequence, Phase
from dualpace.scheduling.host_ledger import HostLedger
from dualpace.scheduling.plan import GpuOutbox, HandoffCommit

_ENDS_REMEMBERED = 4096
"""Far more than end on the host between its word to the gpu-engine and its word to a gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """Bounds of one iteration and of the device's KV memory."""

    num_blocks: int
    block_size: int
    max_running: int
    """Sequences on the device at once."""
    token_budget: int
    """Tokens computed in one iteration, prefill chunks and decodes together."""
    busy_tokens: int = 512
    """Prompt tokens that keep the device busy with arithmetic, iteration by iteration: several
    times as many as take as long as reading the weights, which is 100 to 300 on any GPU."""

    def __post_init__(self) -> None:
        assert self.token_budget >= self.max_running, "decodes alone could exceed the budget"


def _insert(queue: list[GpuSequence], sequence: GpuSequence) -> None:
    bisect.insort(queue, sequence, key=lambda s: s.age_key)


class GpuState:
    """Every request that the gpu-engine knows, and what it holds. Implements placement.NodeView."""

    def __init__(self, limits: GpuLimits) -> None:
        self.limits = limits
        self.sequences: dict[int, GpuSequence] = {}
        # Each oldest first.
        self.waiting: list[GpuSequence] = []
        self.running: list[GpuSequence] = []
        self.away: list[GpuSequence] = []
        self.preemptions = 0
        self.shortage = 0
        """Device blocks that the request lacked at which the last round of admissions stopped."""
        self.leaving_blocks = 0
        """Device blocks of requests on their way out."""
        self.answers = AnswerLength()
        self._allocator = BlockAllocator(limits.num_blocks)
        self._slots = list(range(limits.max_running))
        self._ended_on_host: deque[tuple[int, int]] = deque(maxlen=_ENDS_REMEMBERED)
        """Gateway and request: if the host dies before it tells them, nobody else will."""
        self._events: list[EngineEvent] = []
        self._commands: list[HandoffCommand | HandoffCommit] = []
        self.host = HostLedger(limits.block_size, self._commands.append)

    @property
    def total_device_blocks(self) -> int:
        """Device blocks in all."""
        return self._allocator.num_blocks

    @property
    def free_device_blocks(self) -> int:
        """Device blocks that nobody holds."""
        return self._allocator.free_blocks

    @property
    def total_device_slots(self) -> int:
        """Rows of the device batch in all."""
        return self.limits.max_running

    @property
    def free_device_slots(self) -> int:
        """Rows of the device batch that nobody holds."""
        return len(self._slots)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for the device."""
        return len(self.waiting)

    @property
    def recalls_in_flight(self) -> int:
        """Requests that were called back from the host and have not arrived."""
        return sum(s.recall_sent for s in self.away)

    @property
    def memory_short(self) -> bool:
        """Whether it is memory, not arithmetic, that the device runs out of first.

        A request stays for as many iterations as its answer has tokens. So every iteration, endings
        make room for the device's tokens over the mean length of answers. If prompts of that size
        keep the device busy, more memory would not make it any faster.
        """
        tokens = self.total_device_blocks * self.limits.block_size
        return tokens < self.limits.busy_tokens * self.answers.mean

    @property
    def recalled_blocks(self) -> int:
        """Device blocks that those will take, at least."""
        return sum(self.device_blocks_for(s.num_tokens + 1) for s in self.away if s.recall_sent)

    def device_blocks_for(self, num_tokens: int) -> int:
        """Return how many device blocks hold `num_tokens` tokens."""
        return blocks_for(num_tokens, self.limits.block_size)

    def host_has_room(self, num_tokens: int) -> bool:
        """Whether the host would grant a reservation for `num_tokens`, as far as is known."""
        return self.host.has_room(num_tokens)

    def closing(self, request_id: int) -> bool:
        """Whether a request is gone but for a copy that still touches its blocks."""
        sequence = self.sequences.get(request_id)
        return sequence is not None and sequence.phase is Phase.CLOSING

    def emit(self, event: EngineEvent) -> None:
        """Tell the request's gateway."""
        self._events.append(event)

    def note_start(self, sequence: GpuSequence, now: float) -> None:
        """Tell the gateway that a request is computed, if this is the first time."""
        if not sequence.started:
            sequence.started = True
            waited_s = max(0.0, now - sequence.request.arrival_s)
            self.emit(StartEvent(sequence.gateway_id, sequence.request_id, waited_s))

    def command(self, command: HandoffCommand) -> None:
        """Tell the host."""
        self._commands.append(command)

    def drain(self) -> GpuOutbox:
        """Return what is to be told to others since the last call."""
        outbox = GpuOutbox(tuple(self._events), tuple(self._commands))
        self._events.clear()
        self._commands.clear()
        return outbox

    def enqueue(self, sequence: GpuSequence) -> None:
        """New, preempted or returned: wait for the device."""
        sequence.phase = Phase.WAITING
        _insert(self.waiting, sequence)

    def take_device(self, sequence: GpuSequence, num_tokens: int | None = None) -> bool:
        """WAITING -> no queue.

        Take a slot, and blocks for `num_tokens` or all known tokens. False, and no change, if they
        lack.
        """
        if not self._slots:
            return False
        wanted = self.device_blocks_for(sequence.num_tokens if num_tokens is None else num_tokens)
        try:
            sequence.lease = self._allocator.lease(wanted)
        except CapacityError:
            return False
        sequence.slot = self._slots.pop()
        self.waiting.remove(sequence)
        return True

    def start_running(self, sequence: GpuSequence) -> None:
        """Its blocks are there: compute it from the next iteration on."""
        sequence.phase = Phase.RUNNING
        _insert(self.running, sequence)

    def arrived(self, sequence: GpuSequence) -> None:
        """ARRIVING -> RUNNING: the host's copy is not needed any more."""
        self.release_host(sequence)
        sequence.computed = sequence.num_tokens - 1
        self.start_running(sequence)

    def preempt(self, sequence: GpuSequence) -> None:
        """RUNNING -> WAITING: give the device up; everything is computed again later."""
        self.preemptions += 1
        self.running.remove(sequence)
        self._free_device(sequence)
        sequence.computed = 0
        sequence.bound_for_host = False
        self.enqueue(sequence)

    def stay(self, sequence: GpuSequence) -> None:
        """LEAVING -> RUNNING: there is no host to go to, and the device's KV is whole."""
        assert sequence.lease is not None
        self.leaving_blocks -= len(sequence.lease)
        self.start_running(sequence)

    def recompute(self, sequence: GpuSequence) -> None:
        """ARRIVING -> WAITING: the host whose KV was copied is gone."""
        self._free_device(sequence)
        sequence.computed = 0
        self.enqueue(sequence)

    def start_leaving(self, sequence: GpuSequence) -> None:
        """RUNNING -> LEAVING.

        Not computed here any more; committed when its copies are complete.
        """
        assert sequence.lease is not None
        sequence.phase = Phase.LEAVING
        self.running.remove(sequence)
        self.leaving_blocks += len(sequence.lease)

    def commit(self, sequence: GpuSequence, return_at: int | None) -> None:
        """LEAVING or WAITING -> AWAY.

        The KV is on the host, which owns the request from here on.
        """
        assert sequence.host is not None
        assert sequence.host.blocks is not None
        if sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        commit = Commit(sequence.request, sequence.num_tokens, return_at)
        self._commands.append(HandoffCommit(commit, sequence.host.blocks, tuple(sequence.tokens)))
        self._free_device(sequence)
        sequence.phase = Phase.AWAY
        sequence.host = None
        sequence.bound_for_host = False
        _insert(self.away, sequence)

    def recall(self, sequence: GpuSequence) -> None:
        """Ask the host to give a request back."""
        sequence.recall_sent = True
        self._commands.append(Recall(sequence.request_id))

    def take_back(self, sequence: GpuSequence, returned: Returned) -> None:
        """AWAY -> WAITING.

        Owned here again, with its KV still on the host unless it was evicted.
        """
        self.away.remove(sequence)
        sequence.recall_sent = False
        sequence.computed = 0
        first = sequence.from_host.start if sequence.from_host else sequence.num_tokens
        sequence.tokens.extend(returned.tokens)
        sequence.from_host = range(first, sequence.num_tokens)
        assert sequence.num_tokens == returned.num_tokens
        if returned.cause is ReturnCause.RECALLED:
            sequence.host = self.host.hold_returned(returned)
        self.enqueue(sequence)

    def forget(self, sequence: GpuSequence) -> None:
        """AWAY -> gone: it ended on the host."""
        self.away.remove(sequence)
        del self.sequences[sequence.request_id]
        self._ended_on_host.append((sequence.gateway_id, sequence.request_id))

    def finish(self, sequence: GpuSequence, reason: FinishReason, message: str = "") -> None:
        """Any phase -> gone, by way of CLOSING while copies still touch its blocks."""
        self.emit(
            FinishEvent(
                sequence.gateway_id, sequence.request_id, sequence.num_tokens, reason, message
            )
        )
        self._end(sequence)

    def disown(self, sequence: GpuSequence) -> None:
        """Any phase -> gone, as `finish` does, but the request has not ended.

        Its gateway decides what becomes of it.
        """
        self.emit(Ownership(sequence.gateway_id, sequence.request_id, owned=False))
        self._end(sequence)

    def _end(self, sequence: GpuSequence) -> None:
        queues = {Phase.WAITING: self.waiting, Phase.RUNNING: self.running, Phase.AWAY: self.away}
        if sequence.phase in queues:
            queues[sequence.phase].remove(sequence)
        if sequence.phase is Phase.LEAVING:
            assert sequence.lease is not None
            self.leaving_blocks -= len(sequence.lease)
        sequence.phase = Phase.CLOSING
        if not sequence.copies_in_flight:
            self.close(sequence)

    def close(self, sequence: GpuSequence) -> None:
        """CLOSING -> gone: free whatever is held."""
        self._free_device(sequence)
        if sequence.host is not None:
            self.release_host(sequence)
        del self.sequences[sequence.request_id]

    def grow(self, sequence: GpuSequence, count: int) -> None:
        """Add device blocks to a running sequence. Raises CapacityError."""
        assert sequence.lease is not None
        sequence.lease.grow(count)

    def release_host(self, sequence: GpuSequence) -> None:
        """Give up a host reservation, or the host's copy of a request that is here now."""
        sequence.host = None
        self.host.release(sequence.request_id)

    def lose_host(self) -> None:
        """The host is gone: disown what it owned, forget holds on it, and tell it nothing.

        Gateways hear again of tokens that came from it: it may have died before telling them.
        """
        for sequence in list(self.sequences.values()):
            if sequence.phase is Phase.AWAY:
                self.disown(sequence)
            elif sequence.from_host and sequence.phase is not Phase.CLOSING:
                self._repeat_hosts_tokens(sequence)
        for sequence in self.sequences.values():
            sequence.host = None
            sequence.bound_for_host = False
            sequence.from_host = range(0)
        for gateway_id, request_id in self._ended_on_host:
            self.emit(Ownership(gateway_id, request_id, owned=False))
        self._ended_on_host.clear()
        self._commands.clear()
        self.host.lost()

    def _repeat_hosts_tokens(self, sequence: GpuSequence) -> None:
        gateway_id, request_id = sequence.gateway_id, sequence.request_id
        if sequence.request.sampling.logprobs is not None:
            self.disown(sequence)  # these are not known here: they are computed again
            return
        for position in sequence.from_host:
            token_id = sequence.tokens[position]
            self.emit(TokenEvent(gateway_id, request_id, position, token_id, repeat=True))

    def _free_device(self, sequence: GpuSequence) -> None:
        if sequence.lease is not None:
            if sequence.phase is Phase.LEAVING:
                self.leaving_blocks -= len(sequence.lease)
            sequence.lease.free()
            sequence.lease = None
        if sequence.slot is not None:
            self._slots.append(sequence.slot)
            sequence.slot = None

    def check_integrity(self) -> None:
        """Assert that blocks, slots and queues agree with the phases."""
        self._allocator.check_integrity()
        everyone = list(self.sequences.values())
        assert sum(len(s.lease) for s in everyone if s.lease) == self._allocator.used_blocks
        slots = [*self._slots, *(s.slot for s in everyone if s.slot is not None)]
        assert sorted(slots) == list(range(self.limits.max_running))
        self._check_queue(Phase.WAITING, self.waiting, everyone)
        self._check_queue(Phase.RUNNING, self.running, everyone)
        self._check_queue(Phase.AWAY, self.away, everyone)
        leaving = [s for s in everyone if s.phase is Phase.LEAVING]
        assert self.leaving_blocks == sum(len(s.lease) for s in leaving if s.lease)
        on_device = (Phase.RUNNING, Phase.LEAVING, Phase.ARRIVING)
        for sequence in everyone:
            if sequence.phase is not Phase.CLOSING:
                assert (sequence.lease is not None) == (sequence.phase in on_device)

    @staticmethod
    def _check_queue(
        phase: Phase, queue: list[GpuSequence], everyone: Iterable[GpuSequence]
    ) -> None:
        assert queue == sorted((s for s in everyone if s.phase is phase), key=lambda s: s.age_key)
