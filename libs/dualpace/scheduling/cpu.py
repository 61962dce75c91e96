"""The cpu-engine's scheduler.

Host blocks, slots, and which sequences advance in the next iteration.

It never waits for the device. Every committed sequence advances in every iteration, up to
`max_batch`, beyond which they take turns. When host blocks run out, the youngest sequence is
evicted: the gpu-engine owns it again and recomputes it. It knows block and token ids, not tensors;
what an iteration may hold, and how it is run, it asks its policy.

Events may come at any time, between `schedule` and `apply` too. What would take a sequence away
that is being computed then, waits for `apply`; all else holds at once. A sequence that comes soon
after an iteration has begun may still join it.
"""

from collections.abc import Container, Iterable, Sequence

from dualpace.core.errors import CapacityError
from dualpace.core.messages import Commit, EngineEvent, HostStatus, Refused, Reserve, TokenEvent
from dualpace.core.request import FinishReason
from dualpace.scheduling.host_iteration import HostIteration, Late
from dualpace.scheduling.host_policy import HostPolicy, HostShape, Unprofiled
from dualpace.scheduling.host_sequence import HostPhase, HostSequence
from dualpace.scheduling.host_state import HostLimits, HostState, TableRecord
from dualpace.scheduling.plan import (
    Failure,
    HostOutbox,
    HostPlan,
    HostRow,
    Sample,
    TableWrite,
)

__all__ = ["HostLimits", "HostScheduler", "TableRecord"]


class HostScheduler:
    """Owns a request between `commit` and the end of it, or its return."""

    def __init__(self, limits: HostLimits, policy: HostPolicy | None = None) -> None:
        self.limits = limits
        self._state = HostState(limits)
        self._policy = Unprofiled() if policy is None else policy
        self._started: tuple[float, HostShape] | None = None
        """When the last iteration began, if the next one follows it at once."""
        self._last_status: HostStatus | None = None
        self._device_present = False
        self._iteration = HostIteration()

    @property
    def num_sequences(self) -> int:
        """Sequences that hold a slot, in any phase."""
        return len(self._state.sequences)

    @property
    def num_running(self) -> int:
        """Sequences that advance."""
        return len(self._state.running)

    @property
    def num_parked(self) -> int:
        """Sequences owned here that wait for their gateway."""
        return len(self._state.parked())

    @property
    def evictions(self) -> int:
        """Sequences that were evicted so far."""
        return self._state.evictions

    @property
    def free_blocks(self) -> int:
        """Host blocks that nobody holds."""
        return self._state.free_blocks

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return self._state.free_slots

    def slot_of(self, request_id: int) -> int:
        """Return the slot that a request holds."""
        return self._state.sequences[request_id].slot

    def owned(self, request_id: int) -> HostSequence | None:
        """Return a request that is owned here; not to be changed."""
        return self._state.owned(request_id)

    # Events.

    def device_joined(self) -> None:
        """The gpu-engine is there, and touches no host block: tell it how full the host is."""
        self._device_present = True
        self._last_status = None
        self._state.end_quarantine()

    def reserve(self, reserve: Reserve) -> None:
        """Hold a slot and blocks for a request that is still computed on the device."""
        reason = self._refusal(reserve)
        if reason is None:
            self._state.reserve(reserve.request_id, reserve.num_tokens)
        else:
            self._state.handoff.append(Refused(reserve.request_id, reason))

    def commit(self, commit: Commit, last_token: int, *, parked: bool = False) -> None:
        """Take a request over. `last_token` is the newest known, without KV yet.

        `parked`: its gateway is not there yet.
        """
        sequence = self._state.take_over(commit, last_token)
        if not parked:
            self._state.start(sequence)

    def resume(self, record: TableRecord) -> None:
        """Own what an earlier process owned, in the same slot and blocks; it is parked.

        Raises CapacityError if they are not free, or too few, and then changes nothing.
        """
        self._state.resume(record)

    def quarantine(self, slot: int, blocks: Sequence[int]) -> None:
        """Leave alone what the gpu-engine has from an earlier process, until that says otherwise.

        Raises CapacityError if slot or blocks are not free, and then changes nothing.
        """
        self._state.quarantine(slot, blocks)

    def gateway_joined(self, gateway_id: int, wanted: Container[int]) -> None:
        """Go on with a gateway's parked requests, and end those that it does not want any more."""
        for sequence in self._state.parked():
            if sequence.gateway_id == gateway_id:
                if sequence.request_id in wanted:
                    self._state.start(sequence)
                else:
                    self._state.finish(sequence, FinishReason.CANCELLED)

    def end_parked(self) -> None:
        """End requests whose gateway has not come, and which no gpu-engine answers for."""
        for sequence in self._state.parked():
            if not sequence.device_knows:
                self._state.finish(sequence, FinishReason.CANCELLED)

    def recall(self, request_id: int) -> None:
        """Give a request back with its KV. One that has ended or is on its way back is ignored."""
        if self._iteration.put_off(Late.RECALL, request_id):
            return
        sequence = self.owned(request_id)
        if sequence is not None:
            self._state.give_back(sequence)

    def release(self, request_id: int) -> None:
        """Free a reservation or a returned request. Unknown ids are ignored."""
        sequence = self._state.sequences.get(request_id)
        if sequence is not None:
            assert not sequence.owned, "release of a request owned here"
            self._state.drop(sequence)

    def cancel(self, request_id: int) -> None:
        """Stop a request that is owned here; others are the gpu-engine's to cancel."""
        if self._iteration.put_off(Late.CANCEL, request_id):
            return
        sequence = self.owned(request_id)
        if sequence is not None:
            self._state.finish(sequence, FinishReason.CANCELLED)

    def disown(self, request_id: int) -> None:
        """Give up a request that no gpu-engine knows. Whoever does this tells its gateway."""
        if self._iteration.put_off(Late.DISOWN, request_id):
            return
        sequence = self.owned(request_id)
        if sequence is not None:
            assert not sequence.device_knows
            self._state.drop(sequence)

    def tell(self, event: EngineEvent) -> None:
        """Put in a word to a gateway: before what is told from now on, behind all else."""
        self._state.events.append(event)

    def cancel_gateway(self, gateway_id: int) -> None:
        """Stop every request of a gateway that went away."""
        for sequence in list(self._state.sequences.values()):
            if sequence.owned and sequence.gateway_id == gateway_id:
                self.cancel(sequence.request_id)

    def device_lost(self) -> None:
        """The gpu-engine is gone, and with it whatever was reserved for it or given back to it.

        What is owned here goes on.
        """
        for sequence in list(self._state.sequences.values()):
            sequence.device_knows = False
            if not sequence.owned:
                self._state.drop(sequence)
        self._device_present = False
        self._iteration.forget(Late.RECALL)
        self._state.handoff.clear()

    # Decisions.

    def schedule(self, now: float) -> HostPlan:
        """Decide one iteration. Everything in the plan is executed, then `apply` is called."""
        if self._started is not None:
            started_s, shape = self._started
            self._policy.observe(shape, now - started_s)
        rows: list[HostRow] = []
        for sequence in list(self._state.running):
            if len(rows) == self.limits.max_batch:
                break
            evicted = self._state.sequences.get(sequence.request_id) is not sequence
            if not evicted and self._grow(sequence):
                rows.append(_row(sequence))
        # A victim of a later row's growth may already stand in an earlier one.
        rows = [row for row in rows if row.request_id in self._state.sequences]
        self._state.running.rotate(-len(rows))
        shape = self._policy.shape([row.position + 1 for row in rows])
        self._started = (now, shape) if rows else None
        self._iteration.begin(row.request_id for row in rows)
        return HostPlan(tuple(rows), self.take_writes(), shape.micro_batches, shape.route)

    def join(self, behind: float) -> tuple[HostRow, ...]:
        """Let those who have come since `schedule` catch up with the iteration under way.

        `behind` is the share of its layers that they would compute alone. Nobody joins late, though
        what turned round may come later than others, nor at the cost of another's blocks. `apply`
        takes their results with the others'.
        """
        widest = self.limits.max_batch
        room = {o: self._iteration.room(behind, widest, overdue=o) for o in (False, True)}
        rows: list[HostRow] = []
        for sequence in self._state.running if room[True] else ():
            computed = self._iteration.computes(sequence.request_id)
            fits = len(rows) < room[sequence.turned_round]
            if fits and not computed and self._grow_into_free(sequence):
                rows.append(_row(sequence))
        if rows:
            self._iteration.join((row.request_id for row in rows), behind)
            self._started = None  # it is not of its shape any more
        return tuple(rows)

    def take_writes(self) -> tuple[TableWrite, ...]:
        """Return the table writes since the last plan; they come before what else is told.

        For events in the middle of an iteration: none is of a sequence that is being computed.
        """
        return self._state.take_writes()

    def apply(self, results: Iterable[Sample | Failure]) -> None:
        """Take the results of an executed plan, then what has been held up meanwhile."""
        for result in results:
            sequence = self._state.sequences[result.request_id]
            if isinstance(result, Failure):
                self._state.finish(sequence, result.reason, result.message)
            else:
                self._apply_sample(sequence, result)
        late = {Late.CANCEL: self.cancel, Late.RECALL: self.recall, Late.DISOWN: self.disown}
        for what, request_id in self._iteration.end():
            late[what](request_id)
        if not self._state.running:
            self._started = None

    def _apply_sample(self, sequence: HostSequence, sample: Sample) -> None:
        assert sequence.phase is HostPhase.RUNNING
        assert sequence.request is not None
        position = sequence.num_tokens
        sequence.num_tokens += 1
        sequence.turned_round = False
        self._state.kv_tokens += 1
        sequence.last_token = sample.token_id
        sequence.new_tokens.append(sample.token_id)
        self._state.events.append(
            TokenEvent(
                sequence.gateway_id,
                sample.request_id,
                position,
                sample.token_id,
                sample.logprobs,
                assisted=sample.assisted,
            )
        )
        reason = sequence.request.finish_reason(sequence.num_tokens, sample.token_id)
        if reason is not None:
            self._state.finish(sequence, reason)
        elif sequence.num_tokens == sequence.return_at and sequence.device_knows:
            self._state.give_back(sequence)

    def drain(self) -> HostOutbox:
        """Return what is to be told to others since the last call, a changed status included."""
        state = self._state
        status = HostStatus(
            total_blocks=self.limits.num_blocks,
            free_blocks=self._open_blocks(),
            free_slots=state.free_slots,
            running=len(state.running),
        )
        if self._device_present and status != self._last_status:
            self._last_status = status
            state.handoff.append(status)
        outbox = HostOutbox(tuple(state.events), tuple(state.handoff), tuple(state.disposals))
        state.events.clear()
        state.handoff.clear()
        state.disposals.clear()
        return outbox

    def check_integrity(self) -> None:
        """Assert that blocks, slots and the queue agree with the phases."""
        self._state.check_integrity()
        self._iteration.check_integrity(s.request_id for s in self._state.running)

    def _refusal(self, reserve: Reserve) -> str | None:
        """Return why a reservation cannot be made, or None."""
        if self.owned(reserve.request_id) is not None:
            return "it is here already"
        assert reserve.request_id not in self._state.sequences
        wanted = self._state.blocks_of(reserve.num_tokens)
        widest = self.limits.max_blocks_per_sequence
        if not self._state.free_slots:
            return "no free slot"
        if wanted > widest:
            return f"{wanted} blocks wanted, a sequence has {widest} at most"
        if wanted > self._open_blocks():
            return f"{wanted} blocks wanted, {self._open_blocks()} open"
        return None

    def _open_blocks(self) -> int:
        """Blocks open to reservations.

        Each running sequence keeps one to grow into, and the policy may hold more back.
        """
        free = max(0, self._state.free_blocks - len(self._state.running))
        tokens = self._policy.open_kv_tokens(len(self._state.sequences), self._state.kv_tokens)
        return min(free, tokens // self.limits.block_size)

    def _grow_into_free(self, sequence: HostSequence) -> bool:
        """Make room for the next two tokens if nobody has to leave for it."""
        missing = self._state.blocks_of(sequence.num_tokens + 1) - len(sequence.lease)
        if missing > self._state.free_blocks:
            return False
        if missing > 0:
            self._state.grow(sequence, missing)
        return True

    def _grow(self, sequence: HostSequence) -> bool:
        """Make room for the token this iteration computes and the one it samples."""
        wanted = self._state.blocks_of(sequence.num_tokens + 1)
        while len(sequence.lease) < wanted:
            try:
                self._state.grow(sequence, wanted - len(sequence.lease))
            except CapacityError:
                if len(self._state.running) == 1:
                    return False  # reservations hold the rest; they will be committed or released
                victim = max(self._state.running, key=lambda s: s.age_key)
                self._state.evict(victim)
                if victim is sequence:
                    return False
        return True


def _row(sequence: HostSequence) -> HostRow:
    assert sequence.request is not None
    return HostRow(
        request=sequence.request,
        slot=sequence.slot,
        position=sequence.num_tokens - 1,
        token_id=sequence.last_token,
    )
