"""Calls as the Hermes and Qwen models write them, each between tags within the text.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

A call is passed on when its closing tag is there: its arguments are then known to be JSON. Blank
space around calls is no content.
"""

from dualpace.gateway.tools.calls import Piece, load_json, read_call

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesParser:
    """Implements CallParser."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._searched = 0
        """Characters of `_held` in which no closing tag begins."""
        self._space = ""
        """Blank space that is content only if text follows."""
        self._has_called = False

    def push(self, text: str) -> list[Piece]:
        """Take more text; return what is certain by now."""
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """Return what was held back: the text is over."""
        pieces: list[Piece] = []
        self._show((OPEN if self._inside else "") + self._held, pieces)
        if self._space and not self._has_called:
            pieces.append(self._space)
        self._held = self._space = ""
        self._inside = False
        return pieces

    def _step(self, pieces: list[Piece]) -> bool:
        """Go on to the next tag; return whether there was one."""
        tag = CLOSE if self._inside else OPEN
        at = self._held.find(tag, self._searched)
        if at < 0:
            if self._inside:
                self._searched = max(0, len(self._held) - len(CLOSE) + 1)
            else:
                kept = _overlap(self._held, OPEN)
                self._show(self._held[: len(self._held) - kept], pieces)
                self._held = self._held[len(self._held) - kept :]
            return False
        before, self._held = self._held[:at], self._held[at + len(tag) :]
        self._searched = 0
        if self._inside:
            self._call(before, pieces)
        else:
            self._show(before, pieces)
        self._inside = not self._inside
        return True

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
