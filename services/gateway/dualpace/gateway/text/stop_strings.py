"""Finds stop strings in text that arrives in pieces, and holds back no more than it must.

The string that is complete first ends the text; of those complete at the same character, the
longest. What was held back is always the longest end of the text that begins some stop string, so
the result does not depend on how the text was cut. The automaton is Aho and Corasick's
(Communications of the ACM 18(6), 1975).
"""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton of a set of stop strings, shared by a request's choices. Immutable."""

    __slots__ = ("depth", "fail", "found", "next_state")

    def __init__(self, strings: Sequence[str]) -> None:
        assert all(strings), "an empty stop string would end everything"
        self.next_state: list[dict[str, int]] = [{}]
        self.fail: list[int] = [0]
        self.depth: list[int] = [0]
        self.found: list[str | None] = [None]
        """By state: the longest stop string that the text read so far ends with."""
        for string in strings:
            self._insert(string)
        self._link()

    def _insert(self, string: str) -> None:
        state = 0
        for character in string:
            following = self.next_state[state].get(character)
            if following is None:
                following = len(self.fail)
                self.next_state[state][character] = following
                self.next_state.append({})
                self.fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.found.append(None)
            state = following
        self.found[state] = string

    def _link(self) -> None:
        """Give each state the state of its longest proper ending, breadth first."""
        queue = deque(self.next_state[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self.next_state[state].items():
                self.fail[following] = self.step(self.fail[state], character)
                if self.found[following] is None:
                    self.found[following] = self.found[self.fail[following]]
                queue.append(following)

    def step(self, state: int, character: str) -> int:
        """Return the state after one more character."""
        while state and character not in self.next_state[state]:
            state = self.fail[state]
        return self.next_state[state].get(character, 0)


class StopMatcher:
    """The state of one text. After a match it takes no more."""

    __slots__ = ("_held", "_included", "_state", "_strings", "matched")

    def __init__(self, strings: StopStrings, *, included: bool = False) -> None:
        """Show the stop string itself, too, if it is to be `included`."""
        self._strings = strings
        self._included = included
        self._state = 0
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """Take more text; return what may be shown of everything so far unshown."""
        assert self.matched is None, "text after a stop string"
        strings, state = self._strings, self._state
        pending = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            state = strings.step(state, character)
            found = strings.found[state]
            if found is not None:
                self.matched = found
                self._held = ""
                return pending[: end if self._included else end - len(found)]
        self._state = state
        shown = len(pending) - strings.depth[state]
        self._held = pending[shown:]
        return pending[:shown]

    def flush(self) -> str:
        """Return what was held back; the text is over and no stop string came of it."""
        held, self._held, self._state = self._held, "", 0
        return held
