"""The simulated cpu-engine: its scheduler and a clock.

Like the engine, it takes and answers messages when they come; without `prompt_answers`, between
iterations alone. It does not know the device's schedule, only the terms on which assist is lent.
"""

from collections.abc import Callable, Iterable

from dualpace.core.messages import HandoffEvent, Recall, Release, Reserve
from dualpace.lab.gpu_clock import Command, GpuClock
from dualpace.lab.recorder import Recorder
from dualpace.lab.timeline import Timeline
from dualpace.scheduling.cpu import HostScheduler
from dualpace.scheduling.live_policy import LivePolicy
from dualpace.scheduling.plan import HandoffCommit, HostPlan, Sample
from dualpace.scheduling.routing import RouteCosts


class HostClock:
    """Runs a cpu-engine's scheduler in virtual time."""

    def __init__(
        self,
        timeline: Timeline,
        *,
        costs: RouteCosts,
        scheduler: HostScheduler,
        policy: LivePolicy,
        recorder: Recorder,
        gpu: GpuClock,
        assist: bool = True,
        prompt_answers: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.to_gpu: Callable[[Iterable[HandoffEvent]], None] = gpu.deliver
        self._timeline = timeline
        self._costs = costs
        self._policy = policy
        self._recorder = recorder
        self._gpu = gpu
        self._assist = assist
        self._prompt_answers = prompt_answers
        self._inbox: list[Command] = []
        self._plan: HostPlan | None = None
        self._began_s = 0.0

    def start(self) -> None:
        """Connect to the gpu-engine."""
        self.scheduler.device_joined()
        self._publish()

    def deliver(self, commands: Iterable[Command]) -> None:
        """Take messages from the device."""
        self._inbox.extend(commands)
        if self._plan is None:
            self._begin()
        elif self._prompt_answers:
            self._take()
            self._publish()

    def _take(self) -> None:
        for command in self._inbox:
            self._command(command)
        self._inbox.clear()

    def _begin(self) -> None:
        self._take()
        if self._assist:
            self._policy.terms = self._gpu.terms()
        now = self._timeline.now
        plan = self.scheduler.schedule(now)
        if plan.rows:
            kv_tokens = sum(row.position + 1 for row in plan.rows)
            rows = len(plan.rows)
            actual = self._costs.forecast(plan.route, rows, kv_tokens, self._policy.terms)
            self._plan = plan
            self._began_s = now
            self._timeline.at(now + actual.host_s, self._end)
            self._gpu.assist(actual.gpu_s / actual.host_s)
            self._recorder.assist_s += actual.gpu_s
        else:
            self._gpu.assist(0.0)
        self._recorder.host_residents(self.scheduler.num_running, now)
        self._publish()

    def _end(self) -> None:
        plan = self._plan
        assert plan is not None
        self._plan = None
        self._recorder.host_step(self._began_s, self._timeline.now, len(plan.rows))
        self.scheduler.apply([Sample(row.request_id, 0) for row in plan.rows])
        self._begin()

    def _command(self, command: Command) -> None:
        if isinstance(command, HandoffCommit):
            self.scheduler.commit(command.commit, command.tokens[-1])
        elif isinstance(command, Reserve):
            self.scheduler.reserve(command)
        elif isinstance(command, Recall):
            self.scheduler.recall(command.request_id)
        else:
            assert isinstance(command, Release), f"unexpected command {command}"
            self.scheduler.release(command.request_id)

    def _publish(self) -> None:
        outbox = self.scheduler.drain()
        if outbox.events:
            self._recorder.receive(outbox.events, self._timeline.now, host=True)
        if outbox.handoff:
            self.to_gpu(outbox.handoff)
