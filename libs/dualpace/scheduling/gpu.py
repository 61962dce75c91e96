"""The gpu-engine's scheduler.

Continuous batching with chunked prefill, and the moves between device and host.

`schedule` turns the current state into a plan for one iteration; `apply` takes the sampled tokens;
events from the gateway, the host and the copy engine come in between, those of the host also while
a plan runs. It knows block ids and token ids, not tensors, and nothing of time but what it is told.

Liveness: a request never holds device blocks while it waits for host blocks. Movers go on decoding
until the host has answered, and once more while their KV is copied, so that they miss no iteration;
a request bound for the host gets device blocks only once its host blocks are granted. When the
device runs out of blocks, the youngest resident is preempted and recomputed later.
"""

from collections.abc import Iterable, Sequence

from dualpace.core.messages import (
    Cancel,
    HandoffEvent,
    HostStatus,
    PromptLogprobs,
    Refused,
    Release,
    Reserved,
    ReturnCause,
    Returned,
    Submit,
    TokenEvent,
)
from dualpace.core.request import FinishReason
from dualpace.scheduling.gpu_rows import copy_back, copy_out, next_row
from dualpace.scheduling.gpu_sequence import GpuSequence, Phase
from dualpace.scheduling.gpu_state import GpuLimits, GpuState
from dualpace.scheduling.pacing import FullSpeed, Pacing
from dualpace.scheduling.placement import Placement, Tier
from dualpace.scheduling.plan import (
    Failure,
    GpuOutbox,
    GpuPlan,
    GpuRow,
    KvCopy,
    PromptScores,
    Result,
    Sample,
)

_CROWDING_WEIGHT = 0.05
"""Of the last iteration: it tells times when room is short from single moments."""


class GpuScheduler:
    """Owns every request from `submit` until it ends, except while the host has it."""

    def __init__(
        self, limits: GpuLimits, placement: Placement, pacing: Pacing | None = None
    ) -> None:
        self.state = GpuState(limits)
        self._placement = placement
        self._pacing = FullSpeed() if pacing is None else pacing
        self._blocked = False
        """Whether the last iteration left a request waiting for want of room."""
        self._crowding = 0.0
        """In which share of late iterations one did."""
        self._prompt_tokens = 0
        """Computed in the last iteration."""

    # Events.

    def submit(self, submit: Submit) -> None:
        """Take a new request, or one that lost its engine after some tokens."""
        assert submit.request.request_id not in self.state.sequences
        assert len(submit.prompt) == submit.request.prompt_tokens
        sequence = GpuSequence(submit.request, [*submit.prompt, *submit.generated])
        if submit.generated:  # the prompt's scores came before them, and so did its start
            sequence.scored = len(submit.prompt)
            sequence.started = True
        self.state.sequences[sequence.request_id] = sequence
        self.state.enqueue(sequence)

    def cancel(self, request_id: int) -> None:
        """Stop a request in whatever phase; unknown ids are ignored."""
        sequence = self.state.sequences.get(request_id)
        if sequence is None or sequence.phase is Phase.CLOSING:
            return
        if sequence.phase is Phase.AWAY:
            sequence.cancelled = True
            self.state.command(Cancel(request_id))
        else:
            self.state.finish(sequence, FinishReason.CANCELLED)

    def cancel_gateway(self, gateway_id: int) -> None:
        """Stop every request of a gateway that went away."""
        for sequence in list(self.state.sequences.values()):
            if sequence.request.gateway_id == gateway_id:
                self.cancel(sequence.request_id)

    def host_event(self, event: HandoffEvent) -> None:
        """Take the host's word. Answers for requests that have ended meanwhile are ignored."""
        if isinstance(event, HostStatus):
            self.state.host.update(event)
            return
        sequence = self.state.sequences.get(event.request_id)
        if isinstance(event, Reserved | Refused):
            self.state.host.answered(event.request_id)
            if sequence is not None and sequence.host is not None:
                if isinstance(event, Reserved):
                    self.state.host.grant(sequence.host, event)
                else:
                    sequence.host = None
        elif sequence is None:
            # Its request has ended here: what it still holds there is nobody's.
            if isinstance(event, Returned) and event.cause is ReturnCause.RECALLED:
                self.state.command(Release(event.request_id))
        elif sequence.phase is Phase.AWAY:
            if not isinstance(event, Returned):
                self.state.forget(sequence)
                return
            self.state.take_back(sequence, event)
            if sequence.cancelled:
                self.state.finish(sequence, FinishReason.CANCELLED)

    def host_lost(self) -> None:
        """Give up what the host owned, and what was agreed with it; the rest stays here."""
        self.state.lose_host()

    def take_returned(self) -> tuple[KvCopy, ...]:
        """Decide at once, while a plan runs too, about those that came back from the host.

        They are committed again, where they are, or take room on the device, unless an older one
        waits for it. Whatever runs touches none of that: the copies returned can begin at once.
        """
        copies: list[KvCopy] = []
        overtaking = False
        for sequence in list(self.state.waiting):
            if not sequence.kv_on_host:
                overtaking = True
                continue
            tier = self._placement.admit(sequence, self.state)
            if tier is Tier.HOST:
                self._commit(sequence)
            elif tier is Tier.GPU and not overtaking and self.state.take_device(sequence):
                copies.append(copy_back(sequence))
            else:
                overtaking = True
        return tuple(copies)

    def transfer_done(self, request_id: int) -> None:
        """Note that one copy, to or from the host, has completed."""
        sequence = self.state.sequences[request_id]
        sequence.copies_in_flight -= 1
        assert sequence.copies_in_flight >= 0
        if sequence.copies_in_flight:
            return
        if sequence.phase is Phase.CLOSING:
            self.state.close(sequence)
        elif sequence.phase is Phase.LEAVING:
            if sequence.host is None:  # lost meanwhile
                self.state.stay(sequence)
            else:
                self._commit(sequence)
        elif sequence.phase is Phase.ARRIVING:
            if sequence.host is None:
                self.state.recompute(sequence)
            else:
                self.state.arrived(sequence)

    @property
    def copying(self) -> bool:
        """Whether copies are under way, so that completions are worth polling for."""
        return any(s.copies_in_flight for s in self.state.sequences.values())

    # Decisions.

    def schedule(self, now: float) -> GpuPlan:
        """Decide one iteration. Everything in the plan is executed, then `apply` is called."""
        rows: list[GpuRow] = []
        out: list[KvCopy] = []
        arriving: list[KvCopy] = []
        preemptions = self.state.preemptions
        budget = self._continue_decodes(rows, out, self.state.limits.token_budget)
        decodes = len(rows)
        budget = self._pacing.prompt_tokens(
            left=budget,
            waiting=bool(self.state.waiting) and self.state.memory_short,
            blocked=self._blocked,
            computed=self._prompt_tokens,
        )
        budget = self._continue_prefills(rows, budget)
        self._blocked = self.state.preemptions != preemptions
        if not self._blocked:
            self._admit_waiting(now, rows, arriving, budget)
        self._call_back()
        self._prompt_tokens = sum(len(row.tokens) for row in rows[decodes:])
        self._crowding += _CROWDING_WEIGHT * (self._blocked - self._crowding)
        return GpuPlan(tuple(rows), tuple(out), tuple(arriving), self._worth(rows, decodes))

    def _worth(self, rows: Sequence[GpuRow], decodes: int) -> float:
        """Return what these rows bring: their samples, and a share of the answers that follow.

        Prompts lead to answers as long as those find room when they are there. Where it is room
        that everybody waits for, they are early enough, and worth nothing more.
        """
        prompts = sum(
            len(row.tokens) / self.state.sequences[row.request_id].num_tokens
            for row in rows[decodes:]
        )
        follow = prompts * self.state.answers.mean * (1.0 - self._crowding)
        return sum(row.samples for row in rows) + follow

    def apply(self, plan: GpuPlan, results: Iterable[Result]) -> None:
        """Take the results of an executed plan."""
        for row in plan.rows:
            sequence = self.state.sequences[row.request_id]
            if sequence.phase is Phase.RUNNING:
                sequence.computed = row.start + len(row.tokens)
        for result in results:
            sequence = self.state.sequences[result.request_id]
            if sequence.phase is not Phase.RUNNING:
                continue  # cancelled while the plan ran
            if isinstance(result, Failure):
                self.state.finish(sequence, result.reason, result.message)
            elif isinstance(result, PromptScores):
                self._apply_scores(sequence, result)
            else:
                self._apply_sample(sequence, result)

    def drain(self) -> GpuOutbox:
        """Return what is to be told to others since the last call."""
        return self.state.drain()

    def _apply_scores(self, sequence: GpuSequence, scores: PromptScores) -> None:
        sequence.scored = scores.start + len(scores.tokens)
        self.state.emit(
            PromptLogprobs(sequence.gateway_id, sequence.request_id, scores.start, scores.tokens)
        )

    def _apply_sample(self, sequence: GpuSequence, sample: Sample) -> None:
        position = sequence.num_tokens
        reason = sequence.append(sample.token_id)
        self.state.emit(
            TokenEvent(
                sequence.gateway_id,
                sequence.request_id,
                position,
                sample.token_id,
                sample.logprobs,
            )
        )
        if not sequence.bound_for_host:
            self.state.answers.token(last=reason is not None)
        if reason is not None:
            self.state.finish(sequence, reason)
        elif sequence.bound_for_host:
            self.state.start_leaving(sequence)
            if not sequence.copies_in_flight:
                self._commit(sequence)

    # Running sequences.

    def _continue_decodes(self, rows: list[GpuRow], out: list[KvCopy], budget: int) -> int:
        decodes = [s for s in self.state.running if s.pending == 1]
        residents = [s for s in decodes if not s.bound_for_host]
        movers = {s.request_id for s in self._placement.movers(residents, self.state)}
        for sequence in decodes:
            if sequence.phase is not Phase.RUNNING:
                continue  # preempted by an older one just now
            if sequence.request_id in movers:
                if self._may_move(sequence) and not self._move_out(sequence, out):
                    continue
            elif sequence.host_granted and not sequence.bound_for_host:
                self.state.release_host(sequence)
            if self._grow(sequence):
                rows.append(next_row(sequence, 1))
                budget -= 1
        return budget

    def _continue_prefills(self, rows: list[GpuRow], budget: int) -> int:
        for sequence in self.state.running:
            if sequence.pending > 1 and budget:
                count = min(sequence.pending, budget)
                rows.append(next_row(sequence, count))
                budget -= count
        return budget

    def _may_move(self, sequence: GpuSequence) -> bool:
        """Whether the host has room for a mover and for its next token; if not, see to it."""
        if sequence.host is None:
            # Slack for what is decoded until the answer is here, and for the token of the move.
            wanted = min(sequence.num_tokens + 3, sequence.request.max_total_tokens)
            if self.state.host.has_room(wanted):
                sequence.host = self.state.host.reserve(sequence.request, wanted)
            return False
        if sequence.host.blocks is None:
            return False
        if sequence.num_tokens + 1 > sequence.host.num_tokens:  # outgrew the reservation meanwhile
            self.state.release_host(sequence)
            return False
        return True

    def _move_out(self, sequence: GpuSequence, out: list[KvCopy]) -> bool:
        """Start the copy to the host. Whether it decodes once more meanwhile: where it finds room.

        That token's KV follows the copy layer by layer, like that of a prompt.
        """
        assert sequence.lease is not None
        wanted = self.state.device_blocks_for(sequence.num_tokens)
        room = wanted - len(sequence.lease) <= self.state.free_device_blocks
        if room:
            sequence.bound_for_host = True
        else:
            self.state.start_leaving(sequence)
        out.append(copy_out(sequence))
        return room

    def _grow(self, sequence: GpuSequence) -> bool:
        """Make room for all known tokens, at the cost of younger residents.

        False: not in this iteration.
        """
        assert sequence.lease is not None
        wanted = self.state.device_blocks_for(sequence.num_tokens)
        missing = wanted - len(sequence.lease)
        while missing > self.state.free_device_blocks:
            movable = (s for s in reversed(self.state.running) if not s.copies_in_flight)
            victim = next(movable, None)
            if victim is None or len(self.state.running) == 1:
                return False  # what is on its way out or in will make room
            if victim.age_key < sequence.age_key:
                return False
            self.state.preempt(victim)
            if victim is sequence:
                return False
        if missing > 0:
            self.state.grow(sequence, missing)
        return True

    # Waiting sequences.

    def _admit_waiting(
        self, now: float, rows: list[GpuRow], arriving: list[KvCopy], budget: int
    ) -> None:
        may_reserve = True
        self.state.shortage = 0
        for sequence in list(self.state.waiting):
            tier = self._placement.admit(sequence, self.state)
            if tier is None:
                self._note_shortage(sequence)
                return
            if tier is Tier.HOST and sequence.kv_on_host:
                self._commit(sequence)
                continue
            if tier is Tier.HOST and not self._host_granted(sequence, may_reserve):
                # Younger ones may pass while the host makes up its mind. But once one finds no
                # room there, none behind it may take what it waits for.
                may_reserve = may_reserve and sequence.host is not None
                self._blocked = self._blocked or not may_reserve
                continue
            if not budget and not sequence.kv_on_host:
                return
            if not self.state.take_device(sequence):
                self._note_shortage(sequence)
                return
            if sequence.kv_on_host:
                arriving.append(copy_back(sequence))
                continue
            sequence.bound_for_host = tier is Tier.HOST
            self.state.start_running(sequence)
            self.state.note_start(sequence, now)
            count = min(sequence.pending, budget)
            rows.append(next_row(sequence, count))
            budget -= count

    def _note_shortage(self, sequence: GpuSequence) -> None:
        self._blocked = True
        wanted = self.state.device_blocks_for(sequence.num_tokens)
        self.state.shortage = max(0, wanted - self.state.free_device_blocks)

    def _host_granted(self, sequence: GpuSequence, may_reserve: bool) -> bool:
        """Whether host blocks for the prompt and the next token are held; if not, see to it."""
        wanted = sequence.num_tokens + 1
        if sequence.host is not None and sequence.host.blocks is not None:
            if sequence.host.num_tokens >= wanted:
                return True
            self.state.release_host(sequence)
        elif may_reserve and sequence.host is None and self.state.host.has_room(wanted):
            sequence.host = self.state.host.reserve(sequence.request, wanted)
        return False

    def _commit(self, sequence: GpuSequence) -> None:
        self.state.commit(sequence, self._placement.return_at(sequence))

    def _call_back(self) -> None:
        candidates = [s for s in self.state.away if not s.recall_sent and not s.cancelled]
        while candidates:
            chosen = self._placement.recall(candidates, self.state)
            if chosen is None:
                return
            candidates.remove(chosen)
            self.state.recall(chosen)
