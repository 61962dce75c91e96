"""What the engine's loop knows of Dense Assist: tell the policy what is offered, and use it."""

from typing import Protocol

from dualpace.core.assist import AssistTerms
from dualpace.cpu_engine.assist import AssistedStep
from dualpace.models.host_step import Interruption
from dualpace.scheduling.plan import Failure, HostPlan, Sample


class HearsTerms(Protocol):
    """A host policy that routes by what the device offers."""

    terms: AssistTerms


class Borrower(Protocol):
    """Uses what the device lends."""

    def hear(self, *, device_present: bool) -> None:
        """Tell the policy what is offered now, before it is asked."""
        ...

    def run(
        self, plan: HostPlan, interruption: Interruption | None = None
    ) -> list[Sample | Failure] | None:
        """Run a plan with the device's help. None: it has to be computed here, all of it."""
        ...

    def gauges(self) -> dict[str, float]:
        """Numbers for metrics."""
        ...


class NoBorrowing:
    """Every stage is computed on the host."""

    def hear(self, *, device_present: bool) -> None:
        """Nobody asks."""
        del device_present

    def run(
        self, plan: HostPlan, interruption: Interruption | None = None
    ) -> list[Sample | Failure] | None:
        """No help."""
        del plan, interruption
        return None

    def gauges(self) -> dict[str, float]:
        """No numbers."""
        return {}


class Borrowing:
    """Dense Assist, as a policy wants it."""

    def __init__(self, step: AssistedStep, policy: HearsTerms) -> None:
        self._step = step
        self._policy = policy

    def hear(self, *, device_present: bool) -> None:
        """Tell the policy."""
        self._policy.terms = self._step.terms(device_present=device_present)

    def run(
        self, plan: HostPlan, interruption: Interruption | None = None
    ) -> list[Sample | Failure] | None:
        """Try it."""
        return self._step.run(plan, interruption)

    def gauges(self) -> dict[str, float]:
        """Numbers for metrics."""
        return {
            "assist_open": self._policy.terms.open,
            "assist_iterations_total": self._step.iterations,
            "assist_misses_total": self._step.misses,
        }
