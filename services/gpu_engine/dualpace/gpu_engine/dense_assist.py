"""Dense Assist, the device's side: computes dense stages for the host's batches.

It is asked at the boundaries between the device's own stages, and whenever the device has nothing
to do. The hidden state of a micro-batch stays here between its calls; the last one samples. The
lease bounds what is lent while the device has work of its own: a call that is not granted waits,
and the host, who has a deadline, goes on alone if that takes too long. Nothing here waits for the
host, and no call can fail the engine.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from dualpace.core.clock import Clock
from dualpace.gpu_engine.device import Device
from dualpace.ipc.assist_channel import AssistChannel, AssistResult
from dualpace.ipc.assist_layout import STATUS_DONE, STATUS_FAILED
from dualpace.scheduling.lease import AssistLease

log = logging.getLogger(__name__)


class AssistCallError(Exception):
    """A call makes no sense, for instance because its rows were taken back meanwhile."""


class AssistStages(Protocol):
    """Computes the dense stages of micro-batches, and keeps their state in between."""

    @property
    def last_boundary(self) -> int:
        """The boundary whose call gives results."""

    def run(self, index: int, boundary: int, count: int) -> Tensor | None:
        """Run the stages at a boundary for the `count` rows in channel `index`.

        What the host gets stands in the channel then; the last call's logits are returned. Raises
        AssistCallError.
        """

    def results(self, index: int, logits: Tensor | None) -> list[AssistResult]:
        """Return what the last call gives for each row, once it has been computed."""


class DenseAssist:
    """Serves the calls of one host."""

    def __init__(
        self,
        *,
        stages: AssistStages,
        device: Device,
        channels: Sequence[AssistChannel],
        lease: AssistLease,
        clock: Clock,
    ) -> None:
        self._stages = stages
        self._device = device
        self._channels = channels
        self._lease = lease
        self._clock = clock
        self._busy: set[int] = set()
        self.calls = 0
        """Answered so far."""
        self.failures = 0
        self.lent_s = 0.0
        """Time that calls have taken."""

    def serve(self, *, leased: bool) -> bool:
        """Serve who waits; returns whether anybody did.

        `leased`: the device has work of its own, and the lease decides.
        """
        served = False
        for index, channel in enumerate(self._channels):
            if not channel.waiting or index in self._busy:
                continue
            if leased and not self._lease.granted(self._clock.now()):
                break
            self._serve(index, leased)
            served = True
        return served

    def _serve(self, index: int, leased: bool) -> None:
        channel = self._channels[index]
        boundary = channel.boundary
        started_s = self._clock.now()
        self._busy.add(index)

        def finish(logits: Tensor | None, error: Exception | None) -> None:
            if error is None and boundary == self._stages.last_boundary:
                try:
                    channel.put_results(self._stages.results(index, logits))
                except Exception as failure:  # noqa: BLE001 - told below, and to the host
                    error = failure
            taken_s = self._clock.now() - started_s
            self._note(taken_s, leased, error)
            self._busy.discard(index)
            channel.answer(STATUS_DONE if error is None else STATUS_FAILED, taken_s)

        self._device.lend(lambda: self._stages.run(index, boundary, channel.num_rows), finish)

    def _note(self, taken_s: float, leased: bool, error: Exception | None) -> None:
        self.calls += 1
        self.lent_s += taken_s
        if leased:
            self._lease.charge(taken_s)
        if isinstance(error, AssistCallError):
            self.failures += 1
            log.info("assist refused: %s", error)
        elif error is not None:
            self.failures += 1
            log.error("an assist call failed; the host goes on alone", exc_info=error)
