"""Correcting a prediction by what came of earlier ones.

The ratio of measured to predicted time, smoothed, with single outliers cut off. It knows no units.
"""


class Correction:
    """A factor on predictions, from 1/`bound` to `bound`."""

    def __init__(self, *, weight: float = 0.05, bound: float = 4.0) -> None:
        assert 0.0 < weight <= 1.0
        self._weight = weight
        self._bound = bound
        self.factor = 1.0

    def observe(self, predicted: float, measured: float) -> None:
        """Take one outcome. `predicted` is the prediction before correction."""
        if predicted <= 0.0:
            return
        ratio = min(max(measured / predicted, self.factor / 2), self.factor * 2)
        ratio = min(max(ratio, 1 / self._bound), self._bound)
        self.factor += self._weight * (ratio - self.factor)
