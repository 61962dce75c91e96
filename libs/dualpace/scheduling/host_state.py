"""State of the cpu-engine's scheduler: slots, blocks, phases and what is to be told to others.

Each transition keeps the books in step. When to make one is decided in `cpu`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dualpace.core.blocks import BlockAllocator, BlockLease, blocks_for
from dualpace.core.errors import CapacityError
from dualpace.core.messages import (
    Commit,
    EngineEvent,
    Finished,
    FinishEvent,
    HandoffEvent,
    Ownership,
    Reserved,
    ReturnCause,
    Returned,
    TokenEvent,
)
from dualpace.core.request import FinishReason, Request
from dualpace.scheduling.host_sequence import HostPhase, HostSequence
from dualpace.scheduling.plan import Disposal, TableWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """Bounds of one iteration and of the arena."""

    num_blocks: int
    block_size: int
    num_slots: int
    max_batch: int
    max_blocks_per_sequence: int
    """Width of a row of the block tables."""


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A record of the sequence table, as an earlier process left it."""

    slot: int
    request: Request
    num_tokens: int
    return_at: int | None
    blocks: Sequence[int]
    """Those that hold the known tokens, in order."""
    last_token: int


class HostState:
    """Every sequence that holds a slot, and what it holds."""

    def __init__(self, limits: HostLimits) -> None:
        self.limits = limits
        self.sequences: dict[int, HostSequence] = {}
        self.running: deque[HostSequence] = deque()  # next to advance first
        self.kv_tokens = 0
        """Of all sequences, reserved ones included."""
        self.evictions = 0
        self.events: list[EngineEvent] = []
        self.handoff: list[HandoffEvent] = []
        self.disposals: list[Disposal] = []
        """What has become of slots, in order."""
        self._allocator = BlockAllocator(limits.num_blocks)
        self._slots = list(range(limits.num_slots))
        self._writes: list[TableWrite] = []
        self._quarantined: list[tuple[int, BlockLease]] = []
        """Slots and blocks that the gpu-engine got from an earlier process, and may still copy to
        or from."""

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self._allocator.free_blocks

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return len(self._slots)

    def blocks_of(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return blocks_for(num_tokens, self.limits.block_size)

    def owned(self, request_id: int) -> HostSequence | None:
        """Return a request that is owned here."""
        sequence = self.sequences.get(request_id)
        return sequence if sequence is not None and sequence.owned else None

    def parked(self) -> list[HostSequence]:
        """Return what is owned here and waits for its gateway."""
        return [s for s in self.sequences.values() if s.phase is HostPhase.PARKED]

    def take_writes(self) -> tuple[TableWrite, ...]:
        """Return the table writes since the last call."""
        writes, self._writes = tuple(self._writes), []
        return writes

    def reserve(self, request_id: int, num_tokens: int) -> None:
        """Nothing -> RESERVED. There must be room."""
        sequence = HostSequence(
            request_id, self._slots.pop(), self._allocator.lease(self.blocks_of(num_tokens))
        )
        sequence.num_tokens = num_tokens
        self.kv_tokens += num_tokens
        self.sequences[request_id] = sequence
        blocks = tuple(sequence.lease.blocks)
        self._writes.append(TableWrite(sequence.slot, 0, blocks))
        self.disposals.append(Disposal(sequence.slot, num_tokens))
        self.handoff.append(Reserved(request_id, sequence.slot, blocks))

    def take_over(self, commit: Commit, last_token: int) -> HostSequence:
        """RESERVED or RETURNED -> PARKED."""
        sequence = self.sequences[commit.request.request_id]
        assert not sequence.owned
        assert commit.return_at is None or commit.return_at > commit.num_tokens
        sequence.turned_round = sequence.phase is HostPhase.RETURNED
        sequence.phase = HostPhase.PARKED
        sequence.device_knows = True
        sequence.request = commit.request
        self.kv_tokens += commit.num_tokens - sequence.num_tokens
        sequence.num_tokens = commit.num_tokens
        sequence.last_token = last_token
        sequence.new_tokens.clear()
        sequence.return_at = commit.return_at
        return sequence

    def resume(self, record: TableRecord) -> None:
        """Nothing -> PARKED, in the slot and blocks of an earlier process.

        Raises CapacityError if they are not free, or too few, and then changes nothing.
        """
        request_id, slot = record.request.request_id, record.slot
        fits = slot in self._slots and len(record.blocks) == self.blocks_of(record.num_tokens)
        if request_id in self.sequences or not fits:
            raise CapacityError(f"slot {slot} of the sequence table contradicts another")
        lease = self._allocator.lease_these(record.blocks)
        self._slots.remove(slot)
        sequence = HostSequence(request_id, slot, lease, HostPhase.PARKED, record.request)
        sequence.num_tokens, sequence.last_token = record.num_tokens, record.last_token
        sequence.return_at = record.return_at
        self.kv_tokens += record.num_tokens
        self.sequences[request_id] = sequence

    def quarantine(self, slot: int, blocks: Sequence[int]) -> None:
        """Keep a slot and its blocks from use. Raises CapacityError, and then changes nothing."""
        if slot not in self._slots:
            raise CapacityError(f"slot {slot} of the sequence table contradicts another")
        self._quarantined.append((slot, self._allocator.lease_these(blocks)))
        self._slots.remove(slot)

    def end_quarantine(self) -> None:
        """Free them."""
        for slot, lease in self._quarantined:
            lease.free()
            self._slots.append(slot)
            self.disposals.append(Disposal(slot))
        self._quarantined.clear()

    def start(self, sequence: HostSequence) -> None:
        """PARKED -> RUNNING."""
        assert sequence.request is not None
        sequence.phase = HostPhase.RUNNING
        self.running.append(sequence)
        generated = sequence.num_tokens > sequence.request.prompt_tokens
        if sequence.device_knows and generated and sequence.request.sampling.logprobs is None:
            # Said again: the stream goes on even if the gpu-engine stops before sending it.
            position, token_id = sequence.num_tokens - 1, sequence.last_token
            self.events.append(
                TokenEvent(
                    sequence.gateway_id, sequence.request_id, position, token_id, repeat=True
                )
            )

    def grow(self, sequence: HostSequence, count: int) -> None:
        """Add blocks. Raises CapacityError, and then changes nothing."""
        first = len(sequence.lease)
        added = sequence.lease.grow(count)
        self._writes.append(TableWrite(sequence.slot, first, tuple(added)))

    def evict(self, sequence: HostSequence) -> None:
        """Owned -> gone: whoever made it come here is to recompute it."""
        self.evictions += 1
        if not sequence.device_knows:
            # Its gateway gives it to the gpu-engine again, as soon as there is one.
            self.events.append(Ownership(sequence.gateway_id, sequence.request_id, owned=False))
            self.drop(sequence)
            return
        self.handoff.append(_returned(sequence, ReturnCause.EVICTED))
        self.drop(sequence)

    def give_back(self, sequence: HostSequence) -> None:
        """Owned -> RETURNED: the gpu-engine owns it, with its KV here."""
        self._dequeue(sequence)
        sequence.phase = HostPhase.RETURNED
        self.disposals.append(Disposal(sequence.slot, sequence.num_tokens))
        self.handoff.append(_returned(sequence, ReturnCause.RECALLED))

    def finish(self, sequence: HostSequence, reason: FinishReason, message: str = "") -> None:
        """Owned -> gone: it has ended."""
        self.events.append(
            FinishEvent(
                sequence.gateway_id, sequence.request_id, sequence.num_tokens, reason, message
            )
        )
        self.handoff.append(Finished(sequence.request_id))
        self.drop(sequence)

    def drop(self, sequence: HostSequence) -> None:
        """Any phase -> gone: free what it holds, and tell nobody."""
        self._dequeue(sequence)
        sequence.lease.free()
        self.kv_tokens -= sequence.num_tokens
        self._slots.append(sequence.slot)
        self.disposals.append(Disposal(sequence.slot))
        self._writes = [w for w in self._writes if w.slot != sequence.slot]
        del self.sequences[sequence.request_id]

    def check_integrity(self) -> None:
        """Assert that blocks, slots and the queue agree with the phases."""
        self._allocator.check_integrity()
        everyone = list(self.sequences.values())
        leases = [*(s.lease for s in everyone), *(lease for _, lease in self._quarantined)]
        assert sum(map(len, leases)) == self._allocator.used_blocks
        held = [*(s.slot for s in everyone), *(slot for slot, _ in self._quarantined)]
        assert sorted([*self._slots, *held]) == list(range(self.limits.num_slots))
        running = {s.request_id for s in everyone if s.phase is HostPhase.RUNNING}
        assert self.kv_tokens == sum(s.num_tokens for s in everyone)
        assert running == {s.request_id for s in self.running}
        assert len(running) == len(self.running)

    def _dequeue(self, sequence: HostSequence) -> None:
        if sequence.phase is HostPhase.RUNNING:
            self.running.remove(sequence)


def _returned(sequence: HostSequence, cause: ReturnCause) -> Returned:
    kept = cause is ReturnCause.RECALLED
    return Returned(
        sequence.request_id,
        cause,
        sequence.num_tokens,
        tuple(sequence.new_tokens),
        tuple(sequence.lease.blocks) if kept else (),
    )
