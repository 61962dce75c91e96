"""Lists of CPUs as Linux writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.pinning import format_cpulist, parse_cpulist


@given(st.sets(st.integers(0, 4096)))
def test_any_set_survives_the_way_through_text(cpus: set[int]) -> None:
    assert parse_cpulist(format_cpulist(cpus)) == tuple(sorted(cpus))


def test_what_the_kernel_writes() -> None:
    assert parse_cpulist("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpulist("\n") == ()
    assert format_cpulist([3, 1, 2, 9]) == "1-3,9"


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1,,2", "3-1", "1-2-3", "0x3"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"list of CPUs|before it begins"):
        parse_cpulist(text)
