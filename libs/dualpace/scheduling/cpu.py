"""The cpu-engine's scheduler.

Host blocks, slots, and which sequences advance in the next iteration.

It never waits for the device. Every committed sequence advances in every iteration, up to
`max_batch`, beyond which they take turns. When host blocks run out, the youngest sequence is
evicted: the gpu-engine owns it again and recomputes it. It knows block and token ids, not tensors;
what an iteration may hold, and how it is run, it asks its policy.

Events may come at any time, between `schedule` and `apply` too. What would take a sequence away
that is being computed then, waits for `apply`; all else holds at once.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from dualpace.core.blocks import BlockAllocator, blocks_for
from dualpace.core.errors import CapacityError
from dualpace.core.messages import (
    Commit,
    EngineEvent,
    Finished,
    FinishEvent,
    HandoffEvent,
    HostStatus,
    Refused,
    Reserve,
    Reserved,
    ReturnCause,
    Returned,
    TokenEvent,
)
from dualpace.core.request import FinishReason
from dualpace.scheduling.host_policy import HostPolicy, HostShape, Unprofiled
from dualpace.scheduling.host_sequence import HostPhase, HostSequence
from dualpace.scheduling.plan import (
    Failure,
    HostOutbox,
    HostPlan,
    HostRow,
    Sample,
    TableWrite,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """Bounds of one iteration and of the arena."""

    num_blocks: int
    block_size: int
    num_slots: int
    max_batch: int
    max_blocks_per_sequence: int
    """Width of a row of the block tables."""


class HostScheduler:
    """Owns a request between `commit` and the end of it, or its return."""

    def __init__(self, limits: HostLimits, policy: HostPolicy | None = None) -> None:
        self.limits = limits
        self._policy = Unprofiled() if policy is None else policy
        self._kv_tokens = 0
        """Of all sequences, reserved ones included."""
        self._started: tuple[float, HostShape] | None = None
        """When the last iteration began, if the next one follows it at once."""
        self._allocator = BlockAllocator(limits.num_blocks)
        self._slots = list(range(limits.num_slots))
        self._sequences: dict[int, HostSequence] = {}
        self._running: deque[HostSequence] = deque()  # next to advance first
        self._events: list[EngineEvent] = []
        self._handoff: list[HandoffEvent] = []
        self._writes: list[TableWrite] = []
        self._closed: list[int] = []
        self._last_status: HostStatus | None = None
        self._device_present = False
        self._computing: frozenset[int] = frozenset()
        """Requests of the plan whose results have not come yet: their blocks are being written."""
        self._cancelled: list[int] = []
        self._recalled: list[int] = []
        """Those of them that are to end, or to be given back, once the results are there."""
        self.evictions = 0

    @property
    def num_sequences(self) -> int:
        """Sequences that hold a slot, in any phase."""
        return len(self._sequences)

    @property
    def num_running(self) -> int:
        """Sequences owned here."""
        return len(self._running)

    @property
    def free_blocks(self) -> int:
        """Host blocks that nobody holds."""
        return self._allocator.free_blocks

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return len(self._slots)

    def slot_of(self, request_id: int) -> int:
        """Return the slot that a request holds."""
        return self._sequences[request_id].slot

    # Events.

    def device_joined(self) -> None:
        """The gpu-engine is there: tell it how full the host is."""
        self._device_present = True
        self._last_status = None

    def reserve(self, reserve: Reserve) -> None:
        """Hold a slot and blocks for a request that is still computed on the device."""
        assert reserve.request_id not in self._sequences
        wanted = blocks_for(reserve.num_tokens, self.limits.block_size)
        widest = self.limits.max_blocks_per_sequence
        if not self._slots:
            self._handoff.append(Refused(reserve.request_id, "no free slot"))
        elif wanted > widest:
            reason = f"{wanted} blocks wanted, a sequence has {widest} at most"
            self._handoff.append(Refused(reserve.request_id, reason))
        elif wanted > self._open_blocks():
            reason = f"{wanted} blocks wanted, {self._open_blocks()} open"
            self._handoff.append(Refused(reserve.request_id, reason))
        else:
            sequence = HostSequence(
                reserve.request_id, self._slots.pop(), self._allocator.lease(wanted)
            )
            sequence.num_tokens = reserve.num_tokens
            self._kv_tokens += reserve.num_tokens
            self._sequences[sequence.request_id] = sequence
            blocks = tuple(sequence.lease.blocks)
            self._writes.append(TableWrite(sequence.slot, 0, blocks))
            self._handoff.append(Reserved(sequence.request_id, sequence.slot, blocks))

    def commit(self, commit: Commit, last_token: int) -> None:
        """Take a request over. `last_token` is the newest known, without KV yet."""
        sequence = self._sequences[commit.request.request_id]
        assert sequence.phase is not HostPhase.RUNNING
        assert commit.return_at is None or commit.return_at > commit.num_tokens
        sequence.phase = HostPhase.RUNNING
        sequence.request = commit.request
        self._kv_tokens += commit.num_tokens - sequence.num_tokens
        sequence.num_tokens = commit.num_tokens
        sequence.last_token = last_token
        sequence.new_tokens.clear()
        sequence.return_at = commit.return_at
        self._running.append(sequence)
        generated = commit.num_tokens > commit.request.prompt_tokens
        if generated and commit.request.sampling.logprobs is None:
            # Said again: the stream goes on even if the gpu-engine stops before sending it.
            self._events.append(
                TokenEvent(
                    commit.request.gateway_id,
                    sequence.request_id,
                    sequence.num_tokens - 1,
                    last_token,
                    repeat=True,
                )
            )

    def recall(self, request_id: int) -> None:
        """Give a request back with its KV. One that has ended or is on its way back is ignored."""
        if request_id in self._computing:
            self._recalled.append(request_id)
            return
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.phase is HostPhase.RUNNING:
            self._give_back(sequence)

    def release(self, request_id: int) -> None:
        """Free a reservation or a returned request. Unknown ids are ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            assert sequence.phase is not HostPhase.RUNNING, "release of a request owned here"
            self._close(sequence)

    def cancel(self, request_id: int) -> None:
        """Stop a request that is owned here; others are the gpu-engine's to cancel."""
        if request_id in self._computing:
            self._cancelled.append(request_id)
            return
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.phase is HostPhase.RUNNING:
            self._finish(sequence, FinishReason.CANCELLED)

    def cancel_gateway(self, gateway_id: int) -> None:
        """Stop every request of a gateway that went away."""
        for sequence in list(self._running):
            if sequence.request is not None and sequence.request.gateway_id == gateway_id:
                self.cancel(sequence.request_id)

    def device_lost(self, message: str) -> None:
        """The gpu-engine is gone.

        Free what it reserved or was given back; what is owned here goes on.
        """
        for sequence in list(self._sequences.values()):
            if sequence.phase is HostPhase.RETURNED:
                assert sequence.request is not None
                self._events.append(
                    FinishEvent(
                        sequence.request.gateway_id,
                        sequence.request_id,
                        sequence.num_tokens,
                        FinishReason.ERROR,
                        message,
                    )
                )
            if sequence.phase is not HostPhase.RUNNING:
                self._close(sequence)
        self._device_present = False
        self._recalled.clear()
        self._handoff.clear()

    # Decisions.

    def schedule(self, now: float) -> HostPlan:
        """Decide one iteration. Everything in the plan is executed, then `apply` is called."""
        if self._started is not None:
            started_s, shape = self._started
            self._policy.observe(shape, now - started_s)
        rows: list[HostRow] = []
        for sequence in list(self._running):
            if len(rows) == self.limits.max_batch:
                break
            evicted = self._sequences.get(sequence.request_id) is not sequence
            if not evicted and self._grow(sequence):
                assert sequence.request is not None
                rows.append(
                    HostRow(
                        request=sequence.request,
                        slot=sequence.slot,
                        position=sequence.num_tokens - 1,
                        token_id=sequence.last_token,
                    )
                )
        # A victim of a later row's growth may already stand in an earlier one.
        rows = [row for row in rows if row.request_id in self._sequences]
        self._running.rotate(-len(rows))
        shape = self._policy.shape([row.position + 1 for row in rows])
        self._started = (now, shape) if rows else None
        self._computing = frozenset(row.request_id for row in rows)
        return HostPlan(tuple(rows), self.take_writes(), shape.micro_batches, shape.route)

    def take_writes(self) -> tuple[TableWrite, ...]:
        """Return the table writes since the last plan; they come before what else is told.

        For events in the middle of an iteration: none is of a sequence that is being computed.
        """
        writes, self._writes = tuple(self._writes), []
        return writes

    def apply(self, results: Iterable[Sample | Failure]) -> None:
        """Take the results of an executed plan, then what has been held up meanwhile."""
        for result in results:
            sequence = self._sequences[result.request_id]
            if isinstance(result, Failure):
                self._finish(sequence, result.reason, result.message)
            else:
                self._apply_sample(sequence, result)
        self._computing = frozenset()
        cancelled, self._cancelled = self._cancelled, []
        recalled, self._recalled = self._recalled, []
        for request_id in cancelled:
            self.cancel(request_id)
        for request_id in recalled:
            self.recall(request_id)
        if not self._running:
            self._started = None

    def _apply_sample(self, sequence: HostSequence, sample: Sample) -> None:
        assert sequence.phase is HostPhase.RUNNING
        assert sequence.request is not None
        position = sequence.num_tokens
        sequence.num_tokens += 1
        self._kv_tokens += 1
        sequence.last_token = sample.token_id
        sequence.new_tokens.append(sample.token_id)
        self._events.append(
            TokenEvent(
                sequence.request.gateway_id,
                sample.request_id,
                position,
                sample.token_id,
                sample.logprobs,
                assisted=sample.assisted,
            )
        )
        reason = sequence.request.finish_reason(sequence.num_tokens, sample.token_id)
        if reason is not None:
            self._finish(sequence, reason)
        elif sequence.num_tokens == sequence.return_at and self._device_present:
            self._give_back(sequence)

    def drain(self) -> HostOutbox:
        """Return what is to be told to others since the last call, a changed status included."""
        status = HostStatus(
            total_blocks=self.limits.num_blocks,
            free_blocks=self._open_blocks(),
            free_slots=len(self._slots),
            running=len(self._running),
        )
        if status != self._last_status:
            self._last_status = status
            self._handoff.append(status)
        outbox = HostOutbox(tuple(self._events), tuple(self._handoff), tuple(self._closed))
        self._events.clear()
        self._handoff.clear()
        self._closed.clear()
        return outbox

    def check_integrity(self) -> None:
        """Assert that blocks, slots and the queue agree with the phases."""
        self._allocator.check_integrity()
        everyone = list(self._sequences.values())
        assert sum(len(s.lease) for s in everyone) == self._allocator.used_blocks
        assert sorted([*self._slots, *(s.slot for s in everyone)]) == list(
            range(self.limits.num_slots)
        )
        running = {s.request_id for s in everyone if s.phase is HostPhase.RUNNING}
        assert self._computing <= running
        assert self._computing.issuperset((*self._cancelled, *self._recalled))
        assert self._kv_tokens == sum(s.num_tokens for s in everyone)
        assert running == {s.request_id for s in self._running}
        assert len(running) == len(self._running)

    def _open_blocks(self) -> int:
        """Blocks open to reservations.

        Each running sequence keeps one to grow into, and the policy may hold more back.
        """
        free = max(0, self._allocator.free_blocks - len(self._running))
        tokens = self._policy.open_kv_tokens(len(self._sequences), self._kv_tokens)
        return min(free, tokens // self.limits.block_size)

    def _grow(self, sequence: HostSequence) -> bool:
        """Make room for the token this iteration computes and the one it samples."""
        wanted = blocks_for(sequence.num_tokens + 1, self.limits.block_size)
        while len(sequence.lease) < wanted:
            first = len(sequence.lease)
            try:
                added = sequence.lease.grow(wanted - first)
            except CapacityError:
                if len(self._running) == 1:
                    return False  # reservations hold the rest; they will be committed or released
                victim = max(self._running, key=lambda s: s.age_key)
                self._evict(victim)
                if victim is sequence:
                    return False
            else:
                self._writes.append(TableWrite(sequence.slot, first, tuple(added)))
        return True

    def _evict(self, victim: HostSequence) -> None:
        self.evictions += 1
        if not self._device_present:
            message = "host KV memory ran out, and there is no gpu-engine to recompute it"
            self._finish(victim, FinishReason.ERROR, message)
            return
        self._running.remove(victim)
        self._handoff.append(
            Returned(
                victim.request_id,
                ReturnCause.EVICTED,
                victim.num_tokens,
                tuple(victim.new_tokens),
                (),
            )
        )
        self._close(victim)

    def _give_back(self, sequence: HostSequence) -> None:
        self._running.remove(sequence)
        sequence.phase = HostPhase.RETURNED
        self._closed.append(sequence.slot)
        self._handoff.append(
            Returned(
                sequence.request_id,
                ReturnCause.RECALLED,
                sequence.num_tokens,
                tuple(sequence.new_tokens),
                tuple(sequence.lease.blocks),
            )
        )

    def _finish(self, sequence: HostSequence, reason: FinishReason, message: str = "") -> None:
        self._running.remove(sequence)
        assert sequence.request is not None
        gateway_id = sequence.request.gateway_id
        self._events.append(
            FinishEvent(gateway_id, sequence.request_id, sequence.num_tokens, reason, message)
        )
        self._handoff.append(Finished(sequence.request_id))
        self._close(sequence)

    def _close(self, sequence: HostSequence) -> None:
        sequence.lease.free()
        self._kv_tokens -= sequence.num_tokens
        self._slots.append(sequence.slot)
        self._closed.append(sequence.slot)
        self._writes = [w for w in self._writes if w.slot != sequence.slot]
        del self._sequences[sequence.request_id]
