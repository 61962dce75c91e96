"""The cpu-engine's loop.

Receive, schedule, run, publish. Runs in the main thread, on its own clock. Messages that come in
the middle of an iteration are taken, and answered, between two of its layers.

It depends on no peer: commands come through the inbox when they come, tokens go straight to their
gateway, and a gpu-engine that is slow, stopped or gone changes nothing for the requests owned here.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from dualpace.core.clock import Clock
from dualpace.core.iteration_log import Iteration, IterationLog
from dualpace.core.iteration_tokens import IterationTokens
from dualpace.core.messages import (
    Ask,
    Begin,
    Cancel,
    Commit,
    HandoffCommand,
    Live,
    Recall,
    Release,
    Reserve,
    Submit,
)
from dualpace.core.request import Engine
from dualpace.cpu_engine.borrowing import Borrower, NoBorrowing
from dualpace.cpu_engine.meanwhile import Meanwhile
from dualpace.cpu_engine.questions import Questions
from dualpace.cpu_engine.resuming import resume_from
from dualpace.cpu_engine.routing import ProfileFile
from dualpace.cpu_engine.tracing import NoTracing, Tracer
from dualpace.ipc.arena import Arena
from dualpace.ipc.channel import (
    CpuInput,
    DeviceJoined,
    DeviceLeft,
    GatewayLeft,
    GatewayPort,
    GrammarCompiler,
    HandoffEventPort,
    Inbox,
)
from dualpace.ipc.lockstep import Lockstep
from dualpace.ipc.pulse import Pulse
from dualpace.scheduling.cpu import HostScheduler
from dualpace.scheduling.host_iteration import MOST_NEWCOMERS
from dualpace.scheduling.plan import Failure, HostPlan, HostRow, Sample, TableWrite

log = logging.getLogger(__name__)

_GATEWAY_GRACE_S = 30.0
"""How long requests of an earlier process wait for their gateway, which tries several times a
second."""


class Runner(Protocol):
    """Executes plans."""

    def write_tables(self, writes: tuple[TableWrite, ...]) -> None:
        """Enter newly held blocks into the block tables."""
        ...

    def execute(self, plan: HostPlan, meanwhile: Meanwhile) -> list[Sample | Failure]:
        """Advance every row by one token, and commit the step to the sequence table.

        Calls `meanwhile` between layers; results of those who join follow the others'.
        """
        ...

    def gauges(self) -> Mapping[str, float]:
        """Return numbers of its own for metrics."""
        ...


class CpuEngine:
    """One host's decode engine."""

    def __init__(
        self,
        *,
        scheduler: HostScheduler,
        runner: Runner,
        arena: Arena,
        inbox: Inbox[CpuInput],
        gateways: GatewayPort,
        device: HandoffEventPort,
        grammars: GrammarCompiler,
        clock: Clock,
        borrower: Borrower | None = None,
        profile: ProfileFile | None = None,
        lockstep: Lockstep | None = None,
        iterations: IterationLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._lockstep = lockstep
        self._iterations = iterations
        self._tracer = NoTracing() if tracer is None else tracer
        self._profile = profile
        self._borrower = NoBorrowing() if borrower is None else borrower
        self.scheduler = scheduler
        self._runner = runner
        self._arena = arena
        self._inbox = inbox
        self._port = gateways
        self._device = device
        self._grammars = grammars
        self._clock = clock
        self._meanwhile = Meanwhile(inbox.flag, self._answer, MOST_NEWCOMERS)
        self._joined: list[HostRow] = []
        """The present iteration, in its middle."""
        self._joined_total = 0
        self._pulse = Pulse(arena.heartbeat(Engine.CPU), gateways, clock, self.gauges)
        self._session: int | None = None
        """The handoff session with the gpu-engine, as far as the inbox has told."""
        self._device_left_s: float | None = None
        self._tokens = IterationTokens()
        self._gateways: set[int] = set()
        """Those that have said what they want."""
        resumed = resume_from(arena, scheduler)
        for request in resumed:
            self._tracer.opened(scheduler.slot_of(request.request_id), request)
            if request.sampling.grammar:
                grammars.prepare(request.sampling.grammar, _nothing)
        self._resumed = len(resumed)
        if resumed:
            log.info("%d requests of an earlier process are resumed", len(resumed))
        self._parked_until_s: float | None = clock.now() + _GATEWAY_GRACE_S
        self._questions = Questions(scheduler, arena, resumed=self._resumed > 0)

    @property
    def orphaned_s(self) -> float:
        """Seconds since the gpu-engine went away with nothing left to do here; 0 otherwise.

        A new gpu-engine makes a new arena, once nobody uses this one.
        """
        if self._device_left_s is None or self.scheduler.num_sequences:
            return 0.0
        return self._clock.now() - self._device_left_s

    def step(self) -> bool:
        """One iteration. Returns whether there was anything to compute."""
        self._take()
        self._end_unwanted()
        if self._profile is not None:
            self._profile.poll()
        self._borrower.hear(device_present=self._session is not None)
        began_s = self._clock.now()
        plan = self.scheduler.schedule(began_s)
        self._runner.write_tables(plan.table_writes)
        if plan.rows:
            self._publish()  # what was decided: the device need not wait for this iteration
            if self._lockstep is not None:
                self._lockstep.begin()
            self.scheduler.apply(self._runner.execute(plan, self._meanwhile))
            plan = replace(plan, rows=(*plan.rows, *self._joined))
            self._joined_total += len(self._joined)
            self._joined.clear()
            if self._lockstep is not None:
                self._lockstep.end()
            self._tokens.count(len(plan.rows))
            self._note(plan, began_s)
            self._tracer.advanced(plan)
        self._publish()
        self._pulse.beat(busy=bool(plan.rows))
        return bool(plan.rows)

    def gauges(self) -> dict[str, float]:
        """Numbers for metrics and health."""
        limits = self.scheduler.limits
        return {
            "running": self.scheduler.num_running,
            "sequences": self.scheduler.num_sequences,
            "free_blocks": self.scheduler.free_blocks,
            "total_blocks": limits.num_blocks,
            "free_slots": self.scheduler.free_slots,
            "total_slots": limits.num_slots,
            "evictions_total": self.scheduler.evictions,
            "joined_total": self._joined_total,
            "parked": self.scheduler.num_parked,
            "resumed_total": self._resumed,
            "steps_total": self._pulse.steps,
            "tokens_total": self._tokens.total,
            **self._tokens.gauges(),
            "device_connected": self._session is not None,
            **self._borrower.gauges(),
            **self._runner.gauges(),
            **({} if self._profile is None else self._profile.gauges()),
        }

    def _note(self, plan: HostPlan, began_s: float) -> None:
        if self._iterations is not None:
            self._iterations.note(
                Iteration(
                    begin_s=began_s,
                    end_s=self._clock.now(),
                    requests=[row.request_id for row in plan.rows],
                    rows=len(plan.rows),
                    kv_tokens=sum(row.position + 1 for row in plan.rows),
                    route=plan.route.name.lower(),
                )
            )

    def _take(self) -> None:
        for item in self._inbox.drain():
            self._receive(item)

    def _answer(self, behind: float | None) -> Sequence[HostRow]:
        """Take and answer what has come while an iteration is under way; return who joins it.

        `behind`: the share of its layers that those would have to catch up with; None: too late.
        """
        self._take()
        joined = () if behind is None else self.scheduler.join(behind)
        self._joined += joined
        self._runner.write_tables(self.scheduler.take_writes())
        self._publish()
        return joined

    def _receive(self, item: CpuInput) -> None:
        if isinstance(item, Cancel):
            self.scheduler.cancel(item.request_id)
        elif isinstance(item, Live):
            self._gateways.add(item.gateway_id)
            self.scheduler.gateway_joined(item.gateway_id, frozenset(item.request_ids))
        elif isinstance(item, Ask):
            self._questions.put(item)
        elif isinstance(item, GatewayLeft):
            self._gateways.discard(item.gateway_id)
            self.scheduler.cancel_gateway(item.gateway_id)
        elif isinstance(item, DeviceJoined):
            self._session = item.session
            self._device_left_s = None
            self._questions.device_joined(item.device)
        elif isinstance(item, DeviceLeft):
            self._session = None
            self._device_left_s = self._clock.now()
            self._parked_until_s = self._device_left_s + _GATEWAY_GRACE_S
            self.scheduler.device_lost()
            self._questions.device_left()
        elif isinstance(item, Submit):
            log.error("a gateway submitted to the cpu-engine; only the gpu-engine takes requests")
        else:
            self._command(item)

    def _command(self, command: HandoffCommand) -> None:
        if isinstance(command, Begin):
            self.scheduler.device_joined()
        elif isinstance(command, Reserve):
            if command.grammar:
                # Compiled while the device prefills; the sampler finds it when the commit comes.
                self._grammars.prepare(command.grammar, _nothing)
            self.scheduler.reserve(command)
        elif isinstance(command, Commit):
            self._commit(command)
        elif isinstance(command, Recall):
            self.scheduler.recall(command.request_id)
        elif isinstance(command, Release):
            self.scheduler.release(command.request_id)
        else:
            self.scheduler.cancel(command.request_id)

    def _commit(self, commit: Commit) -> None:
        slot = self.scheduler.slot_of(commit.request.request_id)
        last_token = self._arena.token_at(slot, commit.num_tokens - 1)
        parked = commit.request.gateway_id not in self._gateways
        self.scheduler.commit(commit, last_token, parked=parked)
        self._arena.sequences.open(slot, commit.request, commit.num_tokens, commit.return_at)
        self._tracer.opened(slot, commit.request)

    def _end_unwanted(self) -> None:
        """End requests that are known to nobody: a gateway that lives has come by now."""
        if self._parked_until_s is not None and self._clock.now() > self._parked_until_s:
            self._parked_until_s = None
            self.scheduler.end_parked()

    def _publish(self) -> None:
        outbox = self.scheduler.drain()
        for disposal in outbox.disposals:
            self._tracer.closed(disposal.slot)
            if disposal.lent_tokens:
                self._arena.sequences.lend(disposal.slot, disposal.lent_tokens)
            else:
                self._arena.sequences.close(disposal.slot)
        if outbox.events:
            self._port.post(outbox.events)
        if outbox.handoff and self._session is not None:
            self._device.post(self._session, outbox.handoff)


def _nothing() -> None:
    pass
