"""Measured times as functions: piecewise linear between knots, in one or two variables.

It knows nothing of what is measured. Nothing costs nothing; below the first knot the first value
holds (a kernel has a floor), above the last the final slope goes on.
"""

from bisect import bisect_left
from dataclasses import dataclass


def _between(x0: int, y0: float, x1: int, y1: float, x: float) -> float:
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Curve:
    """Milliseconds against a count. `x` rises strictly from above zero; as many `ms` as `x`."""

    x: tuple[int, ...]
    ms: tuple[float, ...]

    def __post_init__(self) -> None:
        assert self.x
        assert len(self.x) == len(self.ms)

    @property
    def last(self) -> int:
        """The largest count that was measured."""
        return self.x[-1]

    def __call__(self, count: float) -> float:
        """Return the milliseconds at `count`."""
        if count <= 0:
            return 0.0
        x, ms = self.x, self.ms
        if count <= x[0]:
            return ms[0]
        right = bisect_left(x, count)
        if right == len(x):
            if right == 1:
                return ms[0] * count / x[0]
            right -= 1
        elif x[right] == count:
            return ms[right]
        return _between(x[right - 1], ms[right - 1], x[right], ms[right], count)


@dataclass(frozen=True, slots=True)
class Grid:
    """Milliseconds against rows and KV tokens: one curve a measured row count, linear between.

    `rows` rises strictly from above zero; as many `curves` as `rows`.
    """

    rows: tuple[int, ...]
    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        assert self.rows
        assert len(self.rows) == len(self.curves)

    @property
    def last_rows(self) -> int:
        """The largest number of rows that was measured."""
        return self.rows[-1]

    def __call__(self, rows: int, kv_tokens: float) -> float:
        """Return the milliseconds of `rows` rows with `kv_tokens` tokens in all."""
        if rows <= 0:
            return 0.0
        knots = self.rows
        right = bisect_left(knots, rows)
        if right == len(knots):
            return self.curves[-1](kv_tokens)
        if right == 0 or knots[right] == rows:
            return self.curves[right](kv_tokens)
        return _between(
            knots[right - 1],
            self.curves[right - 1](kv_tokens),
            knots[right],
            self.curves[right](kv_tokens),
            rows,
        )
