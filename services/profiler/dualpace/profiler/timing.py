"""How often to repeat a measurement, and what came of it. Pure but for the clock that it is given.

Samples during which a thread had to wait for a CPU tell of the neighbours, not of the node: where
there are enough others, those alone count. A result is the median of samples. It is stable once
the uncertainty of that median is small: 1.57 IQR / sqrt(n), the half-width at which two medians
differ with 95 % confidence (McGill, Tukey and Larsen, The American Statistician 32, 1978).
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Patience:
    """When to stop repeating."""

    tolerance: float
    """Uncertainty of the median, relative to it, that is good enough."""
    most_s: float
    """Time for one result, warm-up included; but never fewer than `least` samples."""
    most_disturbed_s: float
    """The same as long as fewer than `least` samples are undisturbed."""
    least: int = 5
    most: int = 300
    warm_up: int = 2
    all_s: float = math.inf
    """Time for all results together: those that come later are looked at once."""

    def hurried(self) -> "Patience":
        """Return the patience for a result that comes too late."""
        return replace(self, most_s=0.0, most_disturbed_s=0.0, least=1, warm_up=0)


_WAITED_SHARE = 0.01
"""Of a sample's time: less is the odd interrupt."""

QUICK = Patience(tolerance=0.05, most_s=0.5, most_disturbed_s=1.0, least=3, all_s=75.0)
THOROUGH = Patience(tolerance=0.02, most_s=4.0, most_disturbed_s=12.0, least=7)


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of one measurement."""

    ms: float
    """Median."""
    spread: float
    """Interquartile range relative to the median."""
    samples: int
    stable: bool
    disturbed: int = 0
    """Samples, of those that count, during which threads had to wait for a CPU."""


def summarise(samples: Sequence[float], tolerance: float) -> Summary:
    """Return the summary of samples in milliseconds; at least one."""
    median = statistics.median(samples)
    if len(samples) < 2 or median <= 0:
        return Summary(median, 0.0, len(samples), stable=False)
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    spread = (third - first) / median
    stable = 1.57 * spread / math.sqrt(len(samples)) <= tolerance
    return Summary(median, spread, len(samples), stable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What goes on around a measurement."""

    now_s: Callable[[], float]
    waited_s: Callable[[], float] = lambda: 0.0
    """Time that threads of this process have waited for a CPU so far, together."""
    check: Callable[[], None] = lambda: None
    """Runs between samples, and may raise to end."""


def measure(sample_ms: Callable[[], float], patience: Patience, around: Surroundings) -> Summary:
    """Repeat until stable or out of patience."""
    start_s = around.now_s()
    for _ in range(patience.warm_up):
        around.check()
        sample_ms()
        if around.now_s() >= start_s + patience.most_s:
            break
    quiet: list[float] = []
    disturbed: list[float] = []
    while True:
        around.check()
        begin_s, waited_s = around.now_s(), around.waited_s()
        sample = sample_ms()
        waited_s = around.waited_s() - waited_s
        share = _WAITED_SHARE * (around.now_s() - begin_s)
        (disturbed if waited_s > share else quiet).append(sample)
        count = len(quiet) + len(disturbed)
        if count < patience.least:
            continue
        spent_s = around.now_s() - start_s
        if len(quiet) >= patience.least:
            summary = summarise(quiet, patience.tolerance)
            if summary.stable or count >= patience.most or spent_s >= patience.most_s:
                return summary
        elif count >= patience.most or spent_s >= patience.most_disturbed_s:
            whole = summarise(quiet + disturbed, patience.tolerance)
            return replace(whole, stable=False, disturbed=len(disturbed))
