"""Interpolation: exact at knots, monotone between, bounded by its neighbours."""

from hypothesis import given
from hypothesis import strategies as st

from dualpace.scheduling.curves import Curve, Grid

CURVES = st.dictionaries(
    st.integers(1, 10_000), st.floats(0.001, 1e4), min_size=1, max_size=12
).map(lambda points: Curve(tuple(sorted(points)), tuple(points[x] for x in sorted(points))))


@given(CURVES)
def test_a_knot_has_its_value_and_nothing_costs_nothing(curve: Curve) -> None:
    assert [curve(x) for x in curve.x] == list(curve.ms)
    assert curve(0) == 0.0


@given(CURVES, st.floats(0.001, 1.0))
def test_between_knots_lies_between_their_values(curve: Curve, fraction: float) -> None:
    for (x0, y0), (x1, y1) in zip(
        zip(curve.x, curve.ms, strict=True),
        list(zip(curve.x, curve.ms, strict=True))[1:],
        strict=False,
    ):
        value = curve(x0 + fraction * (x1 - x0))
        assert min(y0, y1) * (1 - 1e-9) <= value <= max(y0, y1) * (1 + 1e-9)


def test_below_the_first_knot_is_flat_and_beyond_the_last_the_slope_goes_on() -> None:
    curve = Curve((10, 20), (1.0, 3.0))
    assert curve(3) == 1.0
    assert curve(30) == 5.0


def test_a_single_knot_is_a_floor_and_then_proportional() -> None:
    curve = Curve((10,), (2.0,))
    assert (curve(1), curve(10), curve(40)) == (2.0, 2.0, 8.0)


def test_a_grid_is_linear_in_rows_between_measured_curves() -> None:
    grid = Grid((2, 4), (Curve((10, 20), (1.0, 2.0)), Curve((10, 20), (3.0, 5.0))))
    assert grid(2, 15) == 1.5
    assert grid(3, 15) == (1.5 + 4.0) / 2
    assert grid(1, 15) == 1.5
    assert grid(9, 15) == 4.0
    assert grid(0, 15) == 0.0
    assert grid(3, 0) == 0.0
