"""Keeps the host's router informed of what help would cost, from the iterations as they go by."""

from dualpace.core.assist import AssistTerms
from dualpace.ipc.assist_region import AssistRegion
from dualpace.scheduling.plan import GpuPlan

_WEIGHT = 0.2


class OfferKeeper:
    """Writes the offer; the price is what the device's own iterations are worth a second."""

    def __init__(self, region: AssistRegion, *, share: float, num_layers: int) -> None:
        self._region = region
        self._share = share
        self._num_layers = num_layers
        self._sweep_s = 0.0
        self._idle = AssistTerms(open=True, share=share)
        self._last = self._idle
        region.offer(self._idle)

    def idle(self) -> None:
        """Say that the device has no work of its own."""
        if self._last is not self._idle:
            self._last = self._idle
            self._region.offer(self._idle)

    def ran(self, plan: GpuPlan, seconds: float) -> None:
        """Take an iteration of the device's own: how long it took, time lent not counted."""
        if not plan.rows or seconds <= 0.0:
            return
        self._sweep_s += _WEIGHT * (seconds - self._sweep_s) if self._sweep_s else seconds
        self._last = AssistTerms(
            open=self._share > 0.0,
            price=plan.worth / self._sweep_s,
            share=self._share,
            stage_s=self._sweep_s / self._num_layers,
            sweep_s=self._sweep_s,
            rows=plan.num_tokens,
        )
        self._region.offer(self._last)
