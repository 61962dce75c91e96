"""From how many rows on two groups take turns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("dualpace.kernels", reason="the native kernels are not built")

from dualpace.models.rows_in_turns import rows_that_hide_weights


@given(
    bytes_of_weight=st.floats(0.5, 4.5),
    operations_s=st.floats(1e10, 1e14),
    bytes_s=st.floats(1e10, 1e12),
)
def test_reading_weights_twice_takes_a_third_of_multiplying(
    bytes_of_weight: float, operations_s: float, bytes_s: float
) -> None:
    rows = rows_that_hide_weights(bytes_of_weight, operations_s=operations_s, bytes_s=bytes_s)
    reading_s = 2 * bytes_of_weight / bytes_s  # of one weight
    assert reading_s <= 2 * rows / operations_s / 3 * (1 + 1e-9)
    assert rows == 32 or reading_s > 2 * (rows - 1) / operations_s / 3 * (1 - 1e-9)


def test_two_cores_at_avx2() -> None:
    assert rows_that_hide_weights(4.0, operations_s=262e9, bytes_s=45e9) == 70
