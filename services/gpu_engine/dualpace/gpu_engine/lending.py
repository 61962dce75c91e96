"""What the engine's loop knows of Dense Assist: say how iterations go, and serve when idle."""

from typing import Protocol

from dualpace.gpu_engine.dense_assist import DenseAssist
from dualpace.gpu_engine.offer import OfferKeeper
from dualpace.scheduling.plan import GpuPlan


class Lender(Protocol):
    """Lends the device to the host's batches."""

    def ran(self, plan: GpuPlan, seconds: float) -> None:
        """Note an iteration of the device's own, and how long it took with what was lent in it."""
        ...

    def idle(self) -> bool:
        """Serve the host while there is nothing else to do; whether there was a call."""
        ...

    def gauges(self) -> dict[str, float]:
        """Numbers for metrics."""
        ...


class NoLending:
    """Dense Assist is off."""

    def ran(self, plan: GpuPlan, seconds: float) -> None:
        """Nothing to note."""
        del plan, seconds

    def idle(self) -> bool:
        """Nobody is served."""
        return False

    def gauges(self) -> dict[str, float]:
        """No numbers."""
        return {}


class Lending:
    """Dense Assist is on."""

    def __init__(self, assist: DenseAssist, offer: OfferKeeper) -> None:
        self._assist = assist
        self._offer = offer
        self._lent_s = 0.0

    def at_boundary(self) -> None:
        """Serve whom the lease allows, between two stages of the device's own batch."""
        self._assist.serve(leased=True)

    def ran(self, plan: GpuPlan, seconds: float) -> None:
        """Note an iteration, less what was lent in it."""
        lent_s, self._lent_s = self._assist.lent_s - self._lent_s, self._assist.lent_s
        self._offer.ran(plan, seconds - lent_s)

    def idle(self) -> bool:
        """Serve the host."""
        self._offer.idle()
        served = self._assist.serve(leased=False)
        self._lent_s = self._assist.lent_s
        return served

    def gauges(self) -> dict[str, float]:
        """Numbers for metrics."""
        return {
            "assist_calls_total": self._assist.calls,
            "assist_failures_total": self._assist.failures,
            "assist_seconds_total": self._assist.lent_s,
        }
