"""A GPU that is not there: scheduler, channels and KV copies are real, compute is a wait.

Iterations and assist calls take the time that a profile says; the thread sleeps meanwhile, so that
the host's cores are the cpu-engine's. What the profile says of an iteration's bookkeeping is left
to the engine's loop, whose own is real. Tokens follow from request and position alone, and text is
nonsense. For measuring how engines get along, never for serving.
"""

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from dualpace.core.request import Request
from dualpace.gpu_engine.device import Device
from dualpace.gpu_engine.host_requests import HostRequests
from dualpace.gpu_engine.plan_copies import PlanCopies
from dualpace.ipc.arena import Arena
from dualpace.ipc.assist_channel import AssistChannel, AssistResult
from dualpace.models.kv_pool import KvPool
from dualpace.scheduling.assist import assist_s
from dualpace.scheduling.cost import GpuCosts, work_of
from dualpace.scheduling.plan import GpuPlan, KvCopy, Result, Sample


def emulated_token(request: Request, position: int, vocab_size: int) -> int:
    """Return the token that stands for the model's choice: any but those that end a request."""
    token = (request.request_id * 1_000_003 + position * 7_919) % vocab_size
    while token in request.stop_token_ids:
        token = (token + 1) % vocab_size
    return token


class EmulatedRunner:
    """Executes plans by waiting."""

    def __init__(
        self,
        *,
        costs: GpuCosts,
        device: Device,
        device_pool: KvPool,
        host_pool: KvPool,
        vocab_size: int,
        at_boundary: Callable[[], None] | None = None,
    ) -> None:
        self._costs = costs
        self._copies = PlanCopies(device, device_pool, host_pool)
        self._num_layers = device_pool.num_layers
        self._vocab_size = vocab_size
        self._at_boundary = at_boundary
        self._copying_s = 0.0
        """Spent on copies since the last boundary."""

    def execute(self, plan: GpuPlan) -> list[Result]:
        """Wait as long as the plan would take, boundary by boundary; copies are made meanwhile."""
        due_s = time.perf_counter()
        self._copies.start(plan)
        if not plan.rows:
            return []
        streams = [row for row in plan.rows if row.stream_to is not None]
        compute_s = self._costs.step_s(work_of(plan)) - self._costs.step_overhead_s
        share_s = compute_s / (self._num_layers + 1)
        for layer in range(self._num_layers):
            due_s += self._boundary_s()
            if streams:
                self._copies.stream(layer, streams)
            due_s = _wait_until(due_s + share_s)
        due_s += self._boundary_s()
        _wait_until(due_s + share_s)
        self._copies.finish(streams)
        return [
            Sample(row.request_id, self._token(row.request, row.start + len(row.tokens)))
            for row in plan.rows
            if row.samples
        ]

    def copy_back(self, copies: Sequence[KvCopy]) -> None:
        """Begin copies to the device beside whatever it computes."""
        started_s = time.perf_counter()
        self._copies.back(copies)
        self._copying_s += time.perf_counter() - started_s

    def completed_transfers(self) -> list[int]:
        """Return the request of each copy that has completed since the last call."""
        return self._copies.completed()

    def _token(self, request: Request, position: int) -> int:
        return emulated_token(request, position, self._vocab_size)

    def _boundary_s(self) -> float:
        """Let the host be served; returns how long that took, copies aside: a GPU's run beside."""
        if self._at_boundary is None:
            return 0.0
        self._copying_s = 0.0
        started_s = time.perf_counter()
        self._at_boundary()
        return time.perf_counter() - started_s - self._copying_s


class EmulatedStages:
    """Lends stages by waiting. What goes down to the host is whatever stands in the channel."""

    def __init__(
        self,
        *,
        costs: GpuCosts,
        num_layers: int,
        arena: Arena,
        channels: Sequence[AssistChannel],
        vocab_size: int,
    ) -> None:
        self._costs = costs
        self._num_layers = num_layers
        self._requests = HostRequests(arena)
        self._channels = channels
        self._vocab_size = vocab_size

    @property
    def last_boundary(self) -> int:
        """The boundary behind the last layer."""
        return self._num_layers

    def run(self, index: int, boundary: int, count: int) -> Tensor | None:
        """Wait as long as the call would take."""
        del index
        last = self._costs.num_layers
        at = last if boundary == self._num_layers else min(boundary, last - 1)
        _wait_until(time.perf_counter() + assist_s(self._costs, at, count, True))
        return None

    def results(self, index: int, logits: Tensor | None) -> list[AssistResult]:
        """Return a token for each row."""
        del logits
        channel = self._channels[index]
        results: list[AssistResult] = []
        for row in channel.rows[: channel.num_rows]:
            request = self._requests.of(int(row["slot"]))
            token = emulated_token(request, int(row["position"]) + 1, self._vocab_size)
            results.append(AssistResult(token))
        return results


def _wait_until(due_s: float) -> float:
    """Sleep until a reading of the performance counter; returns it, however late it has become."""
    left_s = due_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)
    return due_s
