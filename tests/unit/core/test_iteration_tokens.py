"""Iterations counted by their tokens come out of reports as they went in."""

from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.iteration_tokens import BOUNDS, IterationTokens, joined

COUNTS = st.lists(st.integers(1, 40_000), max_size=30)


@given(st.lists(COUNTS, max_size=3))
def test_reports_of_engines_are_joined(engines: list[list[int]]) -> None:
    reports = []
    for counts in engines:
        counted = IterationTokens()
        for count in counts:
            counted.count(count)
        reports.append({**counted.gauges(), "tokens_total": float(counted.total), "other": 1.0})
    together = [count for counts in engines for count in counts]
    histogram = joined(reports)
    expected = [sum(count <= bound for count in together) for bound in BOUNDS]
    assert histogram.cumulative == (*expected, len(together))
    assert histogram.tokens == sum(together)
