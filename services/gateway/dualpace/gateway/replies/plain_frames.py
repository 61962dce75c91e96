"""Frames of plain text, made fast: what lies around the text is encoded once for each choice.

A stream's chunks differ in nothing but their text as long as nobody asked for more, such as
log-probabilities; to build and encode each anew is a good part of the gateway's work.
"""

from dualpace.gateway.choices import Choice, Delta
from dualpace.gateway.errors import encode_json, encode_text
from dualpace.gateway.http.sse import frame
from dualpace.gateway.protocol.generation import StreamOptions
from dualpace.gateway.replies.common import Reply

_MARK = "the text goes here \u2023"


class PlainFrames:
    """The frames of one answer's text."""

    __slots__ = ("_around", "_reply", "_varies", "_with_usage")

    def __init__(self, reply: Reply, options: StreamOptions) -> None:
        shown = reply.options
        self._varies = (
            options.continuous_usage_stats or shown.logprobs is not None or shown.return_token_ids
        )
        self._reply = reply
        self._with_usage = options.include_usage
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def frame(self, choice: Choice, delta: Delta) -> bytes | None:
        """Return the frame of more text, or None where it says more than that."""
        if self._varies or delta.calls:
            return None
        around = self._around.get(choice.plan.index)
        if around is None:
            around = self._around[choice.plan.index] = self._encoded(choice)
        return around[0] + encode_text(delta.text) + around[1]

    def _encoded(self, choice: Choice) -> tuple[bytes, bytes]:
        chunk = self._reply.delta(choice, Delta(_MARK, ()))
        if self._with_usage:
            chunk["usage"] = None
        before, mark, after = frame(chunk).partition(encode_json(_MARK))
        assert mark, "the chunk of a delta has its text"
        return before, after
