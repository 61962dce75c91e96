"""Calls as the Hermes and Qwen models write them, each between tags within the text.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

A call is passed on when its closing tag is there: its arguments are then known to be JSON. A tag
within a string of theirs closes nothing. Blank space around calls is no content.
"""

import re

from dualpace.gateway.tools.calls import Piece, load_json, read_call

OPEN = "<tool_call>"
CLOSE = "</tool_call>"

_MARK = re.compile(r'["\\]')


class _Closing:
    """Finds the closing tag of a call in text that grows: the first that stands in no string."""

    def __init__(self) -> None:
        self._searched = 0
        """Characters in which no closing tag begins that was not looked at."""
        self._scanned = 0
        """Characters that `_in_string` accounts for."""
        self._in_string = False

    def find(self, text: str) -> int:
        """Return where the tag begins, or -1. `text` is the last one, and more."""
        while (at := text.find(CLOSE, self._searched)) >= 0:
            self._scan(text, at)
            if not self._in_string:
                return at
            self._searched = at + len(CLOSE)
        self._searched = max(self._searched, len(text) - len(CLOSE) + 1)
        return -1

    def _scan(self, text: str, end: int) -> None:
        while (mark := _MARK.search(text, self._scanned, end)) is not None:
            self._scanned = mark.end()
            if mark[0] == '"':
                self._in_string = not self._in_string
            elif self._in_string:
                self._scanned += 1  # whatever is escaped
        self._scanned = max(self._scanned, end)


class HermesParser:
    """Implements CallParser."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._closing = _Closing()
        self._space = ""
        """Blank space that is content only if text follows."""
        self._has_called = False

    def push(self, text: str) -> list[Piece]:
        """Take more text; return what is certain by now."""
        self._held += text
        pieces: list[Piece] = []
        self._go_on(pieces)
        return pieces

    def finish(self) -> list[Piece]:
        """Return what was held back: the text is over."""
        pieces: list[Piece] = []
        while self._inside and (at := self._held.find(CLOSE)) >= 0:
            # A string never ended: the first tag closed what is no call, and calls may follow.
            self._leave(at, pieces)
            self._go_on(pieces)
        self._show((OPEN if self._inside else "") + self._held, pieces)
        if self._space and not self._has_called:
            pieces.append(self._space)
        self._held = self._space = ""
        self._inside = False
        return pieces

    def _go_on(self, pieces: list[Piece]) -> None:
        while self._step(pieces):
            pass

    def _step(self, pieces: list[Piece]) -> bool:
        """Go on to the next tag; return whether there was one."""
        if self._inside:
            at = self._closing.find(self._held)
            if at >= 0:
                self._leave(at, pieces)
            return at >= 0
        at = self._held.find(OPEN)
        shown = at if at >= 0 else len(self._held) - _overlap(self._held, OPEN)
        self._show(self._held[:shown], pieces)
        self._held = self._held[shown:]
        if at >= 0:
            self._held = self._held[len(OPEN) :]
            self._inside = True
            self._closing = _Closing()
        return at >= 0

    def _leave(self, at: int, pieces: list[Piece]) -> None:
        """Take what was opened, as a call or as text, up to the closing tag at `at`."""
        body, self._held = self._held[:at], self._held[at + len(CLOSE) :]
        self._inside = False
        self._call(body, pieces)

    def _call(self, body: str, pieces: list[Piece]) -> None:
        call = read_call(load_json(body), "arguments")
        if call is None:
            self._show(OPEN + body + CLOSE, pieces)
            return
        self._space = ""
        self._has_called = True
        pieces.append(call)

    def _show(self, text: str, pieces: list[Piece]) -> None:
        text = self._space + text
        solid = text.rstrip()
        self._space = text[len(solid) :]
        if solid:
            pieces.append(solid)


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `tag`."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
