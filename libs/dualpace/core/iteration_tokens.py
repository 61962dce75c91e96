"""How many tokens iterations computed: a histogram that travels as plain numbers.

An engine counts and reports; whoever shows metrics puts reports together. It knows no engine.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the buckets, as vLLM has them; the last bucket has none."""

PREFIX = "iteration_tokens_"
"""Of the numbers' names."""

_LABELS = (*(f"le_{bound}" for bound in BOUNDS), "more")


class IterationTokens:
    """Counts iterations by their tokens. Belongs to one thread."""

    def __init__(self) -> None:
        self._counts = [0] * len(_LABELS)
        self.total = 0
        """Tokens of all iterations."""

    def count(self, tokens: int) -> None:
        """Count an iteration."""
        self._counts[bisect_left(BOUNDS, tokens)] += 1
        self.total += tokens

    def gauges(self) -> dict[str, float]:
        """Return the iterations of each bucket, by name; with `tokens_total` this is all."""
        return {PREFIX + label: n for label, n in zip(_LABELS, self._counts, strict=True)}


@dataclass(frozen=True, slots=True)
class TokenHistogram:
    """Iterations by tokens: at most each bound, and all."""

    cumulative: tuple[float, ...]
    """For each of BOUNDS and for no bound at all."""
    tokens: float


def joined(reports: Iterable[Mapping[str, float]]) -> TokenHistogram:
    """Return what several engines reported as one histogram; absent numbers are 0."""
    counts = [0.0] * len(_LABELS)
    tokens = 0.0
    for report in reports:
        for index, label in enumerate(_LABELS):
            counts[index] += report.get(PREFIX + label, 0.0)
        tokens += report.get("tokens_total", 0.0)
    for index in range(1, len(counts)):
        counts[index] += counts[index - 1]
    return TokenHistogram(tuple(counts), tokens)
