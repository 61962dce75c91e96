"""The simulated gpu-engine: its scheduler, a clock, and the link to host memory.

Like the engine, it schedules, lets the iteration's time pass, and sends what came of it. New
requests are taken between iterations, messages of the host and ends of copies at once. Dense Assist
slows its iterations down by the share of GPU time that the host takes. It does not know the host's
schedule.
"""

from collections.abc import Callable, Iterable

from dualpace.core.assist import AssistTerms
from dualpace.core.messages import HandoffCommand, HandoffEvent, Submit
from dualpace.lab.recorder import Recorder
from dualpace.lab.timeline import Timeline
from dualpace.scheduling.cost import GpuWork, NodeCosts, work_of
from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.plan import GpuPlan, HandoffCommit, KvCopy, Sample
from dualpace.scheduling.routing import offer

Command = HandoffCommand | HandoffCommit


class GpuClock:
    """Runs a gpu-engine's scheduler in virtual time."""

    def __init__(
        self,
        timeline: Timeline,
        costs: NodeCosts,
        scheduler: GpuScheduler,
        recorder: Recorder,
        *,
        assist_share: float = 1.0,
    ) -> None:
        self.scheduler = scheduler
        self.to_host: Callable[[Iterable[Command]], None] | None = None
        self._timeline = timeline
        self._costs = costs
        self._recorder = recorder
        self._assist_limit = assist_share
        self._inbox: list[HandoffEvent] = []
        self._copied: list[int] = []
        self._plan: GpuPlan | None = None
        self._work = GpuWork()
        self._planned_end = 0
        """Counts ends planned: an earlier one is void."""
        self._left_s = 0.0
        """Of the running iteration, at full speed, as of `_as_of_s`."""
        self._as_of_s = 0.0
        self._taken = 0.0
        """Share of the GPU that assist takes now."""
        self._out_free_s = 0.0
        self._in_free_s = 0.0

    def submit(self, submit: Submit) -> None:
        """Take a new request."""
        self.scheduler.submit(submit)
        if self._plan is None:
            self._begin()

    def deliver(self, events: Iterable[HandoffEvent]) -> None:
        """Take messages from the host."""
        self._inbox.extend(events)
        self._hear()

    def terms(self) -> AssistTerms:
        """Return what assist costs now."""
        if self._plan is None:
            return offer(self._costs.gpu, None, share=self._assist_limit)
        worth = self._plan.worth
        return offer(self._costs.gpu, self._work, share=self._assist_limit, worth=worth)

    def assist(self, share: float) -> None:
        """Let assist take this share of the GPU from now on."""
        if share == self._taken:
            return
        if self._plan is not None:
            self._pass_time()
        self._taken = share
        if self._plan is not None:
            self._plan_end()

    def _hear(self) -> None:
        """Take what has come: between iterations all of it, in one's middle as the engine does."""
        if self._plan is None:
            self._begin()
        else:
            self._receive()
            self._publish()

    def _begin(self) -> None:
        self._receive()
        now = self._timeline.now
        plan = self.scheduler.schedule(now)
        self._copy_back(plan.copies_in)
        for copy in plan.copies_out:
            self._copy_out(copy.request_id, copy.num_positions)
        if plan.rows:
            self._plan = plan
            self._work = work_of(plan)
            self._left_s = self._costs.gpu.step_s(self._work)
            self._as_of_s = now
            self._plan_end()
        self._publish()

    def _end(self, number: int) -> None:
        plan = self._plan
        if plan is None or number != self._planned_end:
            return
        self._pass_time()
        work = self._work
        self._recorder.gpu_steps.append(
            (self._timeline.now, work.decode_rows, work.rows - work.decode_rows)
        )
        for row in plan.rows:
            if row.stream_to is not None:
                self._copy_out(row.request_id, len(row.tokens))
        samples = [Sample(row.request_id, 0) for row in plan.rows if row.samples]
        self.scheduler.apply(plan, samples)
        self._plan = None
        self._begin()

    def _pass_time(self) -> None:
        now = self._timeline.now
        passed = now - self._as_of_s
        self._left_s -= passed * (1.0 - self._taken)
        self._as_of_s = now
        self._recorder.gpu_busy_s += passed

    def _plan_end(self) -> None:
        self._planned_end += 1
        number = self._planned_end
        end_s = self._timeline.now + max(0.0, self._left_s) / (1.0 - self._taken)
        self._timeline.at(end_s, lambda: self._end(number))

    def _copy_back(self, copies: Iterable[KvCopy]) -> None:
        for copy in copies:
            seconds = self._costs.link.kv_to_device_s(copy.num_positions)
            self._in_free_s = max(self._timeline.now, self._in_free_s) + seconds
            self._copy_until(self._in_free_s, copy.request_id)

    def _copy_out(self, request_id: int, positions: int) -> None:
        seconds = self._costs.link.kv_to_host_s(positions)
        self._out_free_s = max(self._timeline.now, self._out_free_s) + seconds
        self._copy_until(self._out_free_s, request_id)

    def _copy_until(self, end_s: float, request_id: int) -> None:
        def done() -> None:
            self._copied.append(request_id)
            self._hear()

        self._timeline.at(end_s, done)

    def _receive(self) -> None:
        inbox, self._inbox = self._inbox, []
        for event in inbox:
            self.scheduler.host_event(event)
        copied, self._copied = self._copied, []
        for request_id in copied:
            self.scheduler.transfer_done(request_id)
        self._copy_back(self.scheduler.take_returned())

    def _publish(self) -> None:
        outbox = self.scheduler.drain()
        if outbox.events:
            self._recorder.receive(outbox.events, self._timeline.now)
        if outbox.commands:
            assert self.to_host is not None, "a command to a host that is not there"
            for command in outbox.commands:
                if isinstance(command, HandoffCommit):
                    self._recorder.given_to_host(command.commit.request.request_id)
            self.to_host(outbox.commands)
