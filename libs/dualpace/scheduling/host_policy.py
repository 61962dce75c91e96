"""What the host's scheduler asks of a profile: how much it may hold, and how a batch is run.

`Unprofiled` knows nothing: memory alone bounds the host, one batch, every stage on the CPU.
`ProfiledHost` holds the time between two tokens to a target by admitting no more than an iteration
can advance within it, splits batches and chooses their route; it learns nothing by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dualpace.core.assist import CLOSED, AssistTerms
from dualpace.scheduling.micro_batches import balanced_split
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import Forecast, RouteCosts, Router

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class HostShape:
    """How a batch is run: neighbouring rows per micro-batch, and where its dense stages run."""

    micro_batches: tuple[int, ...]
    route: Route
    forecast: Forecast | None = None
    """None: nobody predicted."""


class HostPolicy(Protocol):
    """Asked by the host's scheduler."""

    def open_kv_tokens(self, rows: int, kv_tokens: int) -> int:
        """How many KV tokens one more row may bring beside `rows` rows that hold `kv_tokens`."""
        ...

    def shape(self, kv_tokens: Sequence[int]) -> HostShape:
        """How to run a batch, given each row's KV tokens."""
        ...

    def observe(self, shape: HostShape, measured_s: float) -> None:
        """Take the time that an iteration of this shape took."""
        ...


class Unprofiled:
    """No predictions."""

    def open_kv_tokens(self, rows: int, kv_tokens: int) -> int:
        """No bound."""
        del rows, kv_tokens
        return UNLIMITED

    def shape(self, kv_tokens: Sequence[int]) -> HostShape:
        """One batch on the CPU."""
        return HostShape((len(kv_tokens),) if kv_tokens else (), Route.HOST)

    def observe(self, shape: HostShape, measured_s: float) -> None:
        """Nothing to learn."""
        del shape, measured_s


class ProfiledHost:
    """Bounds and shapes from predicted times."""

    def __init__(
        self,
        costs: RouteCosts,
        router: Router,
        *,
        itl_target_s: float | None,
        margin: float = 0.05,
    ) -> None:
        self._costs = costs
        self._router = router
        self._admit_s = None if itl_target_s is None else itl_target_s * (1.0 - margin)
        self.terms: AssistTerms = CLOSED
        """What the gpu-engine offers now; set by whoever hears of it."""

    def open_kv_tokens(self, rows: int, kv_tokens: int) -> int:
        """As many as keep the predicted iteration within the target, on the fastest open route."""
        if self._admit_s is None:
            return UNLIMITED
        step = 1 << 14
        now_s = self._fastest_s(rows + 1, kv_tokens + 1)
        if now_s >= self._admit_s:
            return 0
        slope = (self._fastest_s(rows + 1, kv_tokens + 1 + step) - now_s) / step
        return int((self._admit_s - now_s) / slope) if slope > 0 else UNLIMITED

    def shape(self, kv_tokens: Sequence[int]) -> HostShape:
        """The router's choice; micro-batches only where the GPU has a part in the work."""
        if not kv_tokens:
            return HostShape((), Route.HOST)
        forecast = self._router.choose(len(kv_tokens), sum(kv_tokens), self.terms)
        split = balanced_split(kv_tokens, forecast.micro_batches)
        return HostShape(split, forecast.route, forecast)

    def _fastest_s(self, rows: int, kv_tokens: int) -> float:
        routes = (Route.HOST, Route.ASSIST) if self.terms.open else (Route.HOST,)
        return min(self._costs.forecast(r, rows, kv_tokens, self.terms).host_s for r in routes)
