"""The gpu-engine's loop.

Receive, schedule, run, publish. Runs in the main thread, on its own clock.

It never waits for the cpu-engine: commands are posted, answers come through the inbox when they
come, and a host that is slow, stopped or gone holds up nobody who lives on the device.
"""

import logging
from collections.abc import Iterable
from typing import Protocol, get_args

from dualpace.core.clock import Clock
from dualpace.core.messages import (
    Cancel,
    FinishEvent,
    HandoffCommand,
    HandoffEvent,
    Submit,
)
from dualpace.core.request import Engine, FinishReason
from dualpace.ipc.arena import Arena
from dualpace.ipc.channel import (
    GatewayLeft,
    GatewayPort,
    GpuInput,
    HandoffCommandPort,
    HostJoined,
    HostLeft,
    Inbox,
)
from dualpace.ipc.pulse import Pulse
from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.plan import Failure, GpuPlan, HandoffCommit, Sample

log = logging.getLogger(__name__)


class Runner(Protocol):
    """Executes plans."""

    def execute(self, plan: GpuPlan) -> list[Sample | Failure]:
        """Run a plan; returns a result for each row that samples."""
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
        clock: Clock,
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._arena = arena
        self._inbox = inbox
        self._gateways = gateways
        self._host = host
        self._clock = clock
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._session: int | None = None
        """The handoff session with the cpu-engine, as far as the inbox has told."""
        self._pulse = Pulse(arena.heartbeat(Engine.GPU), gateways, clock, self.gauges)
        self._tokens = 0
        self._handoffs = 0
        self._returns = 0

    def step(self) -> bool:
        """One iteration. Returns whether there was anything to execute."""
        for item in self._inbox.drain():
            self._receive(item)
        plan = self._scheduler.schedule(self._clock.now())
        if not plan.empty:
            self._scheduler.apply(plan, self._runner.execute(plan))
            self._tokens += plan.num_tokens
            self._returns += len(plan.copies_in)
        for request_id in self._runner.completed_transfers():
            self._scheduler.transfer_done(request_id)
        self._publish()
        self._pulse.beat(busy=not plan.empty)
        return not plan.empty or self._scheduler.copying

    def gauges(self) -> dict[str, float]:
        """Numbers for metrics and health."""
        state = self._scheduler.state
        return {
            "running": len(state.running),
            "waiting": len(state.waiting),
            "away": len(state.away),
            "sequences": len(state.sequences),
            "free_blocks": state.free_device_blocks,
            "total_blocks": state.total_device_blocks,
            "free_slots": state.free_device_slots,
            "total_slots": state.total_device_slots,
            "preemptions_total": state.preemptions,
            "handoffs_total": self._handoffs,
            "returns_total": self._returns,
            "steps_total": self._pulse.steps,
            "tokens_total": self._tokens,
            "host_connected": state.host.connected,
        }

    def _receive(self, item: GpuInput) -> None:
        if isinstance(item, Submit):
            self._submit(item)
        elif isinstance(item, Cancel):
            self._scheduler.cancel(item.request_id)
        elif isinstance(item, GatewayLeft):
            self._scheduler.cancel_gateway(item.gateway_id)
        elif isinstance(item, HostLeft):
            self._session = None
            self._scheduler.host_lost("the cpu-engine went away")
        elif isinstance(item, get_args(HandoffEvent)):
            self._scheduler.host_event(item)
        else:
            assert isinstance(item, HostJoined)
            self._session = item.session  # its status follows

    def _submit(self, submit: Submit) -> None:
        """Take a request that fits; the gateway checks first, so a refusal here is its fault."""
        request = submit.request
        fault = None
        if request.max_total_tokens > self._max_model_len:
            fault = f"{request.max_total_tokens} tokens exceed the limit of {self._max_model_len}"
        elif max(submit.prompt) >= self._vocab_size:
            fault = f"token ids must be below {self._vocab_size}"
        elif request.request_id in self._scheduler.state.sequences:
            fault = "the request id is in use"
        if fault is None:
            self._scheduler.submit(submit)
            return
        log.error(
            "refused request %x of gateway %x: %s", request.request_id, request.gateway_id, fault
        )
        self._gateways.post(
            [
                FinishEvent(
                    request.gateway_id,
                    request.request_id,
                    request.prompt_tokens,
                    FinishReason.ERROR,
                    fault,
                )
            ]
        )

    def _publish(self) -> None:
        outbox = self._scheduler.drain()
        if outbox.events:
            self._gateways.post(outbox.events)
        if outbox.commands and self._session is not None:
            self._host.post(self._session, list(self._with_tokens(outbox.commands)))

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
