"""The streaming matcher against oracles that see the whole text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dualpace.gateway.text.stop_strings import StopMatcher, StopStrings

# Few characters, so that stop strings overlap themselves, each other and the text.
TEXT = st.text("ab\né👩‍", max_size=40)
STOPS = st.lists(st.text("ab\né👩‍", min_size=1, max_size=5), min_size=1, max_size=4)


def oracle(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Return the text before the stop string that is complete first, the longest of those."""
    found = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


@given(text=TEXT, stops=STOPS, places=st.lists(st.integers(0, 1000)))
def test_however_the_text_is_cut_the_result_is_that_of_the_whole(
    text: str, stops: list[str], places: list[int]
) -> None:
    matcher = StopMatcher(StopStrings(stops))
    shown = ""
    for piece in cut(text, places):
        shown += matcher.push(piece)
        if matcher.matched is not None:
            break
    else:
        shown += matcher.flush()
    assert (shown, matcher.matched) == oracle(text, stops)


@given(text=TEXT, stops=STOPS)
def test_exactly_the_longest_end_that_may_become_a_stop_string_is_held_back(
    text: str, stops: list[str]
) -> None:
    matcher = StopMatcher(StopStrings(stops))
    shown = ""
    for position, character in enumerate(text, start=1):
        shown += matcher.push(character)
        if matcher.matched is not None:
            return
        held = max(
            n
            for n in range(position + 1)
            if n == 0 or any(s.startswith(text[position - n : position]) for s in stops)
        )
        assert shown == text[: position - held]


def test_the_longer_of_two_that_end_together_wins() -> None:
    matcher = StopMatcher(StopStrings(["User:", "\nUser:"]))
    assert matcher.push("Bye.\nUser: hello") == "Bye."
    assert matcher.matched == "\nUser:"


def test_a_stop_string_within_another_ends_the_text_first() -> None:
    matcher = StopMatcher(StopStrings(["abcd", "bc"]))
    assert matcher.push("xabcd") == "xa"
    assert matcher.matched == "bc"


def test_a_false_start_is_shown_once_it_is_refuted() -> None:
    matcher = StopMatcher(StopStrings(["</answer>"]))
    assert matcher.push("1 </ans") == "1 "
    assert matcher.push("wer") == ""
    assert matcher.push("s> 2 </") == "</answers> 2 "
    assert matcher.flush() == "</"
    assert matcher.flush() == ""


def test_choices_share_an_automaton_and_nothing_else() -> None:
    strings = StopStrings(["ab"])
    one, other = StopMatcher(strings), StopMatcher(strings)
    assert one.push("a") == ""
    assert other.push("b") == "b"
    assert one.push("b") == ""
    assert one.matched == "ab"
    assert other.matched is None
