"""What crosses an assist channel is what was put in, and regions do not overlap."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.messages import TokenLogprobs
from dualpace.core.request import MAX_LOGPROBS, FinishReason
from dualpace.ipc.assist_channel import AssistChannel, AssistResult
from dualpace.ipc.assist_layout import (
    STATUS_DONE,
    STATUS_FAILED,
    AssistGeometry,
    assist_layout,
)
from dualpace.ipc.bell import LocalBell

GEOMETRY = AssistGeometry(rows=4, num_heads=4, num_kv_heads=2, head_dim=8, itemsize=4)

floats = st.floats(-100, 0, width=32)
logprobs = st.builds(
    TokenLogprobs,
    floats,
    st.lists(st.tuples(st.integers(0, 2**31 - 1), floats), max_size=MAX_LOGPROBS).map(tuple),
    st.none() | st.integers(1, 1000),
)
results = st.builds(AssistResult, st.integers(0, 2**31 - 1), st.none() | logprobs) | st.builds(
    AssistResult,
    st.none(),
    st.none(),
    st.sampled_from([FinishReason.ERROR, FinishReason.REFUSED]),
    st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=100),
)


def make_channels() -> tuple[AssistChannel, ...]:
    layout = assist_layout(GEOMETRY)
    memory = np.zeros(layout.num_bytes, np.uint8)
    return tuple(AssistChannel(memory, c, GEOMETRY, LocalBell()) for c in layout.channels)


@given(st.lists(results, min_size=1, max_size=4))
def test_results_come_back_as_they_were(given_results: Sequence[AssistResult]) -> None:
    channel, _ = make_channels()
    channel.put_results(given_results)
    assert channel.results(len(given_results)) == list(given_results)


def test_a_call_is_open_until_it_is_answered() -> None:
    channel, other = make_channels()
    assert channel.free
    assert not channel.wait(0.0)  # nothing was asked, so nothing is done
    channel.call(3, 2)
    assert channel.waiting
    assert (channel.boundary, channel.num_rows) == (3, 2)
    assert other.free
    assert not channel.wait(0.01)
    channel.answer(STATUS_DONE, 0.5)
    assert channel.wait(0.0)
    channel.call(4, 2)
    channel.answer(STATUS_FAILED, 0.5)
    assert channel.free
    assert not channel.wait(10.0)


def test_no_two_parts_share_a_byte() -> None:
    parts = [
        part
        for channel in make_channels()
        for part in (channel.rows, channel.attention, channel.q, channel.k, channel.v)
    ]
    for value, part in enumerate(parts, 1):
        part.view(np.uint8)[:] = value
    for value, part in enumerate(parts, 1):
        assert (part.view(np.uint8) == value).all()
    assert [len(p) for p in parts[1:5]] == [
        4 * 8 * 4 * 4,
        4 * 8 * 4 * 4,
        4 * 8 * 2 * 4,
        4 * 8 * 2 * 4,
    ]


def test_without_rows_there_is_no_region() -> None:
    geometry = AssistGeometry(rows=0, num_heads=4, num_kv_heads=2, head_dim=8, itemsize=4)
    assert assist_layout(geometry).num_bytes == 0


@pytest.mark.parametrize("rows", [1, 7, 128])
def test_parts_start_on_cache_lines(rows: int) -> None:
    geometry = AssistGeometry(rows=rows, num_heads=3, num_kv_heads=1, head_dim=20, itemsize=2)
    layout = assist_layout(geometry)
    for channel in layout.channels:
        for offset in (channel.call, channel.rows, channel.attention, channel.q, channel.results):
            assert offset % 64 == 0
