"""Both schedulers and the messages between them, without engines.

Every interleaving is the caller's choice.

Tokens are a fixed function of request and position, so whoever samples a position must produce the
same token. The harness checks ownership, order and accounting after each move.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from dualpace.core.messages import (
    Cancel,
    EngineEvent,
    FinishEvent,
    HandoffCommand,
    HandoffEvent,
    Recall,
    Release,
    Reserve,
    Submit,
    TokenEvent,
)
from dualpace.core.request import FinishReason, Request
from dualpace.scheduling.cpu import HostLimits, HostScheduler
from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.placement import Placement
from dualpace.scheduling.plan import (
    GpuPlan,
    HandoffCommit,
    HostPlan,
    HostRow,
    KvCopy,
    Sample,
    TableWrite,
)


def token_for(request_id: int, position: int) -> int:
    """The token that any engine must sample at this position."""
    return (request_id * 7919 + position * 104729) % 50_000


@dataclass
class Received:
    """What a gateway has seen of one request."""

    prompt_tokens: int
    tokens: dict[int, int] = field(default_factory=dict)
    finish: FinishEvent | None = None


class TwoSchedulers:
    """Both engines' schedulers, joined by two ordered queues that the caller delivers."""

    def __init__(self, gpu: GpuLimits, host: HostLimits, placement: Placement) -> None:
        self.gpu = GpuScheduler(gpu, placement)
        self.host = HostScheduler(host)
        self.to_host: deque[HandoffCommand | HandoffCommit] = deque()
        self.to_gpu: deque[HandoffEvent] = deque()
        self.transfers: list[int] = []
        self.received: dict[int, Received] = {}
        self.max_total: dict[int, int] = {}
        self.tables: dict[int, tuple[int, ...]] = {}
        """The host's block tables, by slot."""
        self.copies_amid_plans = 0
        """Copies to the device that began while a plan of the gpu-engine ran."""
        self._gpu_plan: GpuPlan | None = None
        self._held: list[Callable[[], None]] = []
        """What the gpu-engine hears of gateways once its plan has ended."""
        self._host_plan: HostPlan | None = None
        self._host_tables: dict[int, tuple[int, ...]] = {}
        self.host.device_joined()
        self._drain_host()

    def submit(self, request: Request) -> None:
        """Give a new request to the gpu-engine; its prompt is derived from its id."""
        prompt = tuple(token_for(request.request_id, p) for p in range(request.prompt_tokens))
        self.received[request.request_id] = Received(request.prompt_tokens)
        self.max_total[request.request_id] = request.max_total_tokens
        self._between_plans(lambda: self.gpu.submit(Submit(request, prompt)))

    def cancel(self, request_id: int) -> None:
        """Cancel at both engines, as a gateway does."""
        self._between_plans(lambda: self.gpu.cancel(request_id))
        self.host.cancel(request_id)
        self._drain_host()

    def gpu_step(self, *, finish_transfers: bool = True) -> GpuPlan:
        """One iteration of the gpu-engine, or the end of the one that has begun."""
        plan = self.gpu_begin()
        self.gpu_end()
        if finish_transfers:
            self.finish_transfers()
        return plan

    def gpu_begin(self) -> GpuPlan:
        """Begin an iteration of the gpu-engine, unless one has begun; the host may be heard then.

        Copies may complete at any time.
        """
        if self._gpu_plan is not None:
            return self._gpu_plan
        self._take_returned()
        plan = self._gpu_plan = self.gpu.schedule(0.0)
        for row in plan.rows:
            assert len(row.blocks) * self.gpu.state.limits.block_size >= row.start + len(row.tokens)
            expected = [token_for(row.request_id, row.start + i) for i in range(len(row.tokens))]
            assert list(row.tokens) == expected
        for copy in (*plan.copies_in, *plan.copies_out):
            self.transfers.append(copy.request_id)
        self._drain_gpu()
        return plan

    def gpu_end(self) -> None:
        """End the iteration that has begun, if one has."""
        plan, self._gpu_plan = self._gpu_plan, None
        if plan is None:
            return
        self.transfers += [row.request_id for row in plan.rows if row.stream_to is not None]
        self.gpu.apply(
            plan,
            [
                Sample(row.request_id, token_for(row.request_id, row.start + len(row.tokens)))
                for row in plan.rows
                if row.samples
            ],
        )
        held, self._held = self._held, []
        for event in held:
            event()
        self._drain_gpu()

    def _between_plans(self, event: Callable[[], None]) -> None:
        self._held.append(event)
        if self._gpu_plan is None:
            self._held.pop()()
            self._drain_gpu()

    def _take_returned(self) -> None:
        """Begin copies of what came back; none touches what the running plan computes with."""
        copies = self.gpu.take_returned()
        self.transfers += [copy.request_id for copy in copies]
        if self._gpu_plan is not None:
            self.copies_amid_plans += len(copies)
            self._assert_apart(self._gpu_plan, copies)

    @staticmethod
    def _assert_apart(plan: GpuPlan, copies: Iterable[KvCopy]) -> None:
        written = {block for copy in copies for block in copy.device_blocks}
        for row in plan.rows:
            assert written.isdisjoint(row.blocks)
        for copy in (*plan.copies_in, *plan.copies_out):
            assert written.isdisjoint(copy.device_blocks)

    def finish_transfers(self) -> None:
        """Complete every copy that is under way."""
        while self.transfers:
            self.gpu.transfer_done(self.transfers.pop(0))
        if self._gpu_plan is not None:
            self._take_returned()
        self._drain_gpu()

    def host_step(self) -> HostPlan:
        """One iteration of the cpu-engine, or the end of the one that has begun."""
        plan = self.host_begin()
        self.host_end()
        return plan

    def host_begin(self) -> HostPlan:
        """Begin an iteration of the cpu-engine, unless one has begun; messages may come then."""
        if self._host_plan is None:
            self._host_plan = self.host.schedule(0.0)
            self._enter(self._host_plan.table_writes)
            for row in self._host_plan.rows:
                assert row.token_id == token_for(row.request_id, row.position)
            self._host_tables = {row.slot: self.tables[row.slot] for row in self._host_plan.rows}
        return self._host_plan

    def host_join(self, behind: float) -> tuple[HostRow, ...]:
        """Let who has come join the iteration that has begun, if one has."""
        if self._host_plan is None:
            return ()
        joined = self.host.join(behind)
        self._enter(self.host.take_writes())
        for row in joined:
            assert row.request_id not in {present.request_id for present in self._host_plan.rows}
            assert row.token_id == token_for(row.request_id, row.position)
            self._host_tables[row.slot] = self.tables[row.slot]
        self._host_plan = replace(self._host_plan, rows=(*self._host_plan.rows, *joined))
        return joined

    def host_end(self) -> None:
        """End the iteration that has begun, if one has."""
        plan, self._host_plan = self._host_plan, None
        if plan is None:
            return
        for row in plan.rows:
            # What was read and written is still the sequence's, and nothing moved meanwhile.
            assert self.host.slot_of(row.request_id) == row.slot
            assert self.tables[row.slot] == self._host_tables[row.slot]
        self.host.apply(
            [
                Sample(row.request_id, token_for(row.request_id, row.position + 1))
                for row in plan.rows
            ]
        )
        self._drain_host()

    def deliver_to_host(self) -> None:
        """Deliver the oldest command, if there is one."""
        if self.to_host:
            self._host_command(self.to_host.popleft())
            self._drain_host()

    def deliver_to_gpu(self) -> None:
        """Deliver the oldest host event, if there is one."""
        if self.to_gpu:
            self.gpu.host_event(self.to_gpu.popleft())
            if self._gpu_plan is not None:
                self._take_returned()
            self._drain_gpu()

    def run_to_end(self, max_rounds: int = 10_000) -> None:
        """Let everything happen, fairly, until no request is left."""
        for _ in range(max_rounds):
            if not (self.gpu.state.sequences or self.host.num_sequences or self.to_host):
                return
            self.round()
        raise AssertionError("requests are stuck")

    def round(self) -> None:
        """Let everything happen once, fairly, and check."""
        self.gpu_step()
        self.host_round()

    def host_round(self) -> None:
        """The part of a round that comes after the device's iteration."""
        while self.to_host:
            self.deliver_to_host()
        self.host_step()
        while self.to_gpu:
            self.deliver_to_gpu()
        self.check()

    def check(self) -> None:
        """Assert accounting on both sides, and that no request is owned twice."""
        self.gpu.state.check_integrity()
        self.host.check_integrity()

    def _host_command(self, command: HandoffCommand | HandoffCommit) -> None:
        if isinstance(command, HandoffCommit):
            assert command.tokens[-1] == token_for(
                command.commit.request.request_id, command.commit.num_tokens - 1
            )
            capacity = len(command.host_blocks) * self.host.limits.block_size
            assert capacity >= command.commit.num_tokens
            assert self.tables[self.host.slot_of(command.commit.request.request_id)] == tuple(
                command.host_blocks
            )
            self.host.commit(command.commit, command.tokens[-1])
        elif isinstance(command, Reserve):
            assert command.num_tokens <= self.max_total[command.request_id]
            self.host.reserve(command)
        elif isinstance(command, Recall):
            self.host.recall(command.request_id)
        elif isinstance(command, Release):
            self.host.release(command.request_id)
        else:
            assert isinstance(command, Cancel)
            self.host.cancel(command.request_id)

    def _drain_gpu(self) -> None:
        outbox = self.gpu.drain()
        self.to_host.extend(outbox.commands)
        self._receive(outbox.events)

    def _enter(self, writes: Iterable[TableWrite]) -> None:
        for write in writes:
            kept = self.tables.get(write.slot, ())[: write.first]
            assert len(kept) == write.first
            self.tables[write.slot] = kept + write.blocks

    def _drain_host(self) -> None:
        self._enter(self.host.take_writes())
        outbox = self.host.drain()
        self.to_gpu.extend(outbox.handoff)
        self._receive(outbox.events)

    def _receive(self, events: tuple[EngineEvent, ...]) -> None:
        for event in events:
            received = self.received[event.request_id]
            if isinstance(event, TokenEvent):
                assert event.token_id == token_for(event.request_id, event.position)
                assert event.position >= received.prompt_tokens
                received.tokens[event.position] = event.token_id
            elif isinstance(event, FinishEvent):
                assert received.finish is None, "a request ended twice"
                received.finish = event

    def assert_complete(self, request: Request, reason: FinishReason) -> None:
        """Assert that a request ended for this reason, with every token up to its end seen."""
        received = self.received[request.request_id]
        assert received.finish is not None
        assert received.finish.reason is reason
        first = request.prompt_tokens
        assert sorted(received.tokens) == list(range(first, received.finish.end_position))
