"""When two groups take turns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("dualpace.kernels", reason="the native kernels are not built")

from dualpace.models.rows_in_turns import KeysInTurns, rows_that_hide_weights


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


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    windows=st.lists(st.sampled_from([None, 1, 128, 4096]), min_size=1, max_size=5),
    key_bytes=st.integers(1, 4096),
    weight_bytes=st.integers(1, 1 << 26),
)
def test_keys_are_enough_where_they_are_as_many_bytes_as_the_weights(
    lengths: list[int], windows: list[int | None], key_bytes: int, weight_bytes: int
) -> None:
    rule = KeysInTurns(weight_bytes, key_bytes, windows)
    read = sum(min(n, w or n) * key_bytes for n in lengths for w in windows)
    assert rule.enough(np.array(lengths, np.int32)) == (read >= weight_bytes)
