"""How often and how soon a service that dies is started again."""

from hypothesis import given
from hypothesis import strategies as st

from dualpace.cli.restarts import WINDOW_S, Restarts


def test_the_first_is_made_at_once_and_later_ones_wait() -> None:
    restarts = Restarts(8)
    delays = [restarts.delay_s(float(now)) for now in range(9)]
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, None]
    assert restarts.count == 8


def test_none_are_made_where_none_are_wanted() -> None:
    assert Restarts(0).delay_s(0.0) is None


@given(st.integers(1, 5), st.lists(st.integers(0, 200), max_size=40))
def test_no_window_sees_more_than_the_limit(limit: int, gaps: list[int]) -> None:
    restarts, now, made = Restarts(limit), 0, list[int]()
    for gap in gaps:
        now += gap
        if restarts.delay_s(now) is not None:
            made.append(now)
        else:
            assert sum(now - t < WINDOW_S for t in made) >= limit
    for t in made:
        assert sum(t <= other < t + WINDOW_S for other in made) <= limit
