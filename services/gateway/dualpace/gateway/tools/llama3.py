"""Calls as Llama 3.1 and later write them: the whole answer is JSON, one object for each call.

    {"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": …}

An answer that begins with a brace is held back until it is over; then it is calls, or text.
"""

import json

from dualpace.gateway.tools.calls import Piece, read_call

_TAG = "<|python_tag|>"
"""Comes first sometimes; a special token as a rule, and then no part of the text."""


class Llama3Parser:
    """Implements CallParser."""

    def __init__(self) -> None:
        self._held = ""
        self._is_text = False

    def push(self, text: str) -> list[Piece]:
        """Take more text; return what is certain by now."""
        if not self._is_text:
            self._held += text
            start = self._held.lstrip()[: len(_TAG)]
            if not start or start[0] == "{" or _TAG.startswith(start):
                return []
            self._is_text = True
            text, self._held = self._held, ""
        return [text] if text else []

    def finish(self) -> list[Piece]:
        """Return what was held back: the text is over."""
        held, self._held = self._held, ""
        calls = _read_calls(held.strip().removeprefix(_TAG))
        return calls or ([held] if held else [])


def _read_calls(text: str) -> list[Piece]:
    """Return the calls of a text that is nothing else, or an empty list."""
    calls: list[Piece] = []
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        if text[at].isspace() or (text[at] == ";" and calls):
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        call = read_call(value, "parameters")
        if call is None:
            return []
        calls.append(call)
    return calls
