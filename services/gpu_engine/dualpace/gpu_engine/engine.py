"""The gpu-engine's loop.

Receive, schedule, run, publish. Runs in the main thread, on its own clock.

It never waits for the cpu-engine: commands are posted, answers come through the inbox when they
come, and a host that is slow, stopped or gone holds up nobody who lives on the device.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol, get_args

from dualpace.core.clock import Clock
from dualpace.core.iteration_log import Iteration, IterationLog
from dualpace.core.iteration_tokens import IterationTokens
from dualpace.core.messages import (
    Ask,
    Begin,
    Cancel,
    FinishEvent,
    HandoffCommand,
    HandoffEvent,
    Live,
    Submit,
)
from dualpace.core.request import Engine, FinishReason, Request
from dualpace.gpu_engine.between_stages import HostHearing
from dualpace.gpu_engine.lending import Lender, NoLending
from dualpace.gpu_engine.tracing import NoTracing, Tracer
from dualpace.ipc.arena import Arena
from dualpace.ipc.channel import (
    GatewayLeft,
    GatewayPort,
    GpuInput,
    GrammarCompiler,
    GrammarReady,
    HandoffCommandPort,
    HostJoined,
    HostLeft,
    Inbox,
)
from dualpace.ipc.codec import encoded_size
from dualpace.ipc.lockstep import Lockstep
from dualpace.ipc.pulse import Pulse
from dualpace.scheduling.cost import work_of
from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.plan import GpuPlan, HandoffCommit, KvCopy, Result

log = logging.getLogger(__name__)


class Runner(Protocol):
    """Executes plans."""

    def execute(self, plan: GpuPlan) -> list[Result]:
        """Run a plan; returns prompt scores, and a result for each row that samples."""
        ...

    def copy_back(self, copies: Sequence[KvCopy]) -> None:
        """Begin copies to the device beside whatever it computes; also while `execute` runs."""
        ...

    def completed_transfers(self) -> list[int]:
        """Return the request of each copy that has completed since the last call."""
        ...


class GpuEngine:
    """One device's engine."""

    def __init__(
        self,
        *,
        scheduler: GpuScheduler,
        runner: Runner,
        arena: Arena,
        inbox: Inbox[GpuInput],
        gateways: GatewayPort,
        host: HandoffCommandPort,
        grammars: GrammarCompiler,
        clock: Clock,
        max_model_len: int,
        vocab_size: int,
        lender: Lender | None = None,
        lockstep: Lockstep | None = None,
        iterations: IterationLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._lockstep = lockstep
        self._iterations = iterations
        self._tracer = NoTracing() if tracer is None else tracer
        self._lender = NoLending() if lender is None else lender
        self.scheduler = scheduler
        self._runner = runner
        self._arena = arena
        self._inbox = inbox
        self._hearing = HostHearing(inbox, scheduler)
        self._gateways = gateways
        self._host = host
        self._grammars = grammars
        self._compiling: dict[int, Submit] = {}
        """Requests whose grammar is being compiled; the scheduler has not seen them yet."""
        self._clock = clock
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._begun = False
        """Whether the host knows that no copy of earlier sessions is under way."""
        self._session: int | None = None
        """The handoff session with the cpu-engine, as far as the inbox has told."""
        self._pulse = Pulse(arena.heartbeat(Engine.GPU), gateways, clock, self.gauges)
        self._tokens = IterationTokens()
        self._handoffs = 0
        self._returns = 0

    def step(self) -> bool:
        """One iteration. Returns whether there was anything to execute."""
        for item in self._hearing.drain():
            self._receive(item)
        self._take_returned()
        started_s = self._clock.now()
        plan = self.scheduler.schedule(started_s)
        self._look()
        self._publish()  # what was decided: the host need not wait for this iteration to hear it
        lent = plan.empty and self._lender.idle()
        if not plan.empty:
            if self._lockstep is not None and plan.rows:
                self._lockstep.begin()
            self.scheduler.apply(plan, self._runner.execute(plan))
            self._lender.ran(plan, self._clock.now() - started_s)
            self._tokens.count(plan.num_tokens)
            self._returns += len(plan.copies_in)
            self._note(plan, started_s)
            self._look()
        self._note_copied()
        self._look()
        self._publish()
        self._pulse.beat(busy=not plan.empty)
        return not plan.empty or lent or self.scheduler.copying

    def between_stages(self) -> None:
        """Hear the host in the middle of an iteration, and see to what comes back and goes out."""
        copied = self._note_copied()
        if self._hearing.listen() or copied:
            self._take_returned()
            self._look()
            self._publish()

    def _take_returned(self) -> None:
        copies = self.scheduler.take_returned()
        if copies:
            self._returns += len(copies)
            self._runner.copy_back(copies)
            self._note_copied()  # where copies complete at once, the next plan has them

    def _note_copied(self) -> bool:
        """Tell the scheduler which copies are complete; whether any has become so."""
        copied = self._runner.completed_transfers()
        for request_id in copied:
            self.scheduler.transfer_done(request_id)
        return bool(copied)

    def gauges(self) -> dict[str, float]:
        """Numbers for metrics and health."""
        state = self.scheduler.state
        return {
            "running": len(state.running),
            "waiting": len(state.waiting) + len(self._compiling),
            "compiling": len(self._compiling),
            "away": len(state.away),
            "sequences": len(state.sequences) + len(self._compiling),
            "free_blocks": state.free_device_blocks,
            "total_blocks": state.total_device_blocks,
            "block_size": state.limits.block_size,
            "free_slots": state.free_device_slots,
            "total_slots": state.total_device_slots,
            "preemptions_total": state.preemptions,
            "handoffs_total": self._handoffs,
            "returns_total": self._returns,
            "steps_total": self._pulse.steps,
            "tokens_total": self._tokens.total,
            **self._tokens.gauges(),
            "host_connected": state.host.connected,
            **self._lender.gauges(),
        }

    def _note(self, plan: GpuPlan, began_s: float) -> None:
        if self._iterations is not None and plan.rows:
            work = work_of(plan)
            self._iterations.note(
                Iteration(
                    begin_s=began_s,
                    end_s=self._clock.now(),
                    requests=[row.request_id for row in plan.rows if row.samples],
                    rows=work.rows,
                    kv_tokens=work.kv_tokens,
                )
            )

    def _look(self) -> None:
        self._tracer.look(self.scheduler.state.sequences, self._compiling)

    def _receive(self, item: GpuInput) -> None:
        if isinstance(item, Submit):
            self._submit(item)
        elif isinstance(item, Cancel):
            self._cancel(item.request_id)
        elif isinstance(item, GatewayLeft):
            self._cancel_gateway(item.gateway_id)
        elif isinstance(item, GrammarReady):
            submit = self._compiling.pop(item.request_id, None)
            if submit is not None:  # else cancelled meanwhile
                self.scheduler.submit(submit)
        elif isinstance(item, HostLeft):
            self._session = None
            self.scheduler.host_lost()
        elif isinstance(item, get_args(HandoffEvent)):
            self.scheduler.host_event(item)
        elif isinstance(item, Live | Ask):
            log.error("a gateway asked the gpu-engine; only the cpu-engine has answers")
        else:
            assert isinstance(item, HostJoined)
            self._session, self._begun = item.session, False

    def _submit(self, submit: Submit) -> None:
        """Take a request that fits; the gateway checks first, so a refusal here is its fault."""
        request = submit.request
        if self.scheduler.state.closing(request.request_id):
            self._inbox.put(submit)  # given up a moment ago: as soon as its last copy has ended
            return
        fault = None
        known = request.request_id in self.scheduler.state.sequences
        if request.max_total_tokens > self._max_model_len:
            fault = f"{request.max_total_tokens} tokens exceed the limit of {self._max_model_len}"
        elif max(*submit.prompt, *submit.generated, 0) >= self._vocab_size:
            fault = f"token ids must be below {self._vocab_size}"
        elif known or request.request_id in self._compiling:
            fault = "the request id is in use"
        elif encoded_size(request) > self._arena.geometry.request_bytes:
            fault = f"it has more than the {self._arena.geometry.request_bytes} bytes of a slot"
        if fault is not None:
            log.error("refused request %x: %s", request.request_id, fault)
            self._end_unscheduled(request, FinishReason.ERROR, fault)
            return
        self._tracer.received(request)
        grammar = request.sampling.grammar
        if not grammar or self._grammars.ready(grammar):
            self.scheduler.submit(submit)
            return
        self._compiling[request.request_id] = submit
        ready = GrammarReady(request.request_id)
        self._grammars.prepare(grammar, lambda: self._inbox.put(ready))

    def _cancel(self, request_id: int) -> None:
        submit = self._compiling.pop(request_id, None)
        if submit is None:
            self.scheduler.cancel(request_id)
        else:
            self._end_unscheduled(submit.request, FinishReason.CANCELLED)

    def _cancel_gateway(self, gateway_id: int) -> None:
        for request_id, submit in list(self._compiling.items()):
            if submit.request.gateway_id == gateway_id:
                self._cancel(request_id)
        self.scheduler.cancel_gateway(gateway_id)

    def _end_unscheduled(self, request: Request, reason: FinishReason, message: str = "") -> None:
        """Tell the gateway the end of a request that the scheduler has never seen."""
        end = FinishEvent(
            request.gateway_id, request.request_id, request.prompt_tokens, reason, message
        )
        self._gateways.post([end])

    def _publish(self) -> None:
        outbox = self.scheduler.drain()
        if self._session is not None and not self._begun and not self.scheduler.copying:
            self._begun = True
            self._host.post(self._session, [Begin()])  # its status follows
        # The host first: a commit that misses the beginning of its iteration waits for all of it.
        if outbox.commands and self._session is not None:
            self._host.post(self._session, list(self._with_tokens(outbox.commands)))
        if outbox.events:
            self._gateways.post(outbox.events)

    def _with_tokens(
        self, commands: Iterable[HandoffCommand | HandoffCommit]
    ) -> Iterable[HandoffCommand]:
        """Put the token ids of committed requests into the arena before the commit is sent."""
        for command in commands:
            if isinstance(command, HandoffCommit):
                self._arena.write_tokens(command.host_blocks, command.tokens)
                self._handoffs += 1
                yield command.commit
            else:
                yield command
