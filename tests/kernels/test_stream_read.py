"""The bandwidth probe reads every word exactly once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpace.kernels import stream_read

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(words=st.lists(INT64, max_size=100), num_threads=st.integers(1, 5))
def test_the_sum_is_that_of_all_words(words: list[int], num_threads: int) -> None:
    array = np.array(words, dtype=np.int64)
    assert stream_read(array, num_threads=num_threads) == sum(words) % 2**64
    assert stream_read(torch.from_numpy(array), num_threads=num_threads) == sum(words) % 2**64


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="words: is float32, it must be int64"):
        stream_read(np.zeros(4, np.float32), num_threads=1)
    with pytest.raises(ValueError, match=r"words: has shape \[2, 2\], it must be \[count\]"):
        stream_read(np.zeros((2, 2), np.int64), num_threads=1)
    with pytest.raises(ValueError, match="num_threads: is 0"):
        stream_read(np.zeros(4, np.int64), num_threads=0)
