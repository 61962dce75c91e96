"""Answers as OpenAI's older routes have them: one object, or chunks that end with [DONE]."""

from collections.abc import Iterator, Sequence
from typing import Any

from dualpace.gateway.choices import Choice, Delta
from dualpace.gateway.errors import ApiError
from dualpace.gateway.http.sse import DONE, frame
from dualpace.gateway.protocol.generation import StreamOptions
from dualpace.gateway.replies.common import Reply, ReplyOptions, usage_of
from dualpace.gateway.replies.plain_frames import PlainFrames


class Chunks:
    """Implements Presentation for chat and text completions; what each shows is its `Reply`'s."""

    __slots__ = ("_choices", "_opened", "_plain", "_reply", "_stream_options")

    def __init__(self, choices: Sequence[Choice], reply: Reply, options: StreamOptions) -> None:
        self._choices = choices
        self._reply = reply
        self._stream_options = options
        self._opened: set[int] = set()
        self._plain = PlainFrames(reply, options)

    @property
    def options(self) -> ReplyOptions:
        """What the client wants to see of it."""
        return self._reply.options

    def whole(self, shown: Sequence[Sequence[Delta]]) -> dict[str, Any]:
        """Return the answer in one object."""
        return self._reply.whole(self._choices, shown, usage_of(self._choices))

    def added(self, choice: Choice, delta: Delta | None) -> bytes | None:
        """Return a frame for each chunk: at most an opening, a delta and a closing."""
        if choice.finish is None and choice.plan.index in self._opened:
            if delta is None:
                return None
            data = self._plain.frame(choice, delta)
            if data is not None:
                return data
        return b"".join(map(frame, self._chunks(choice, delta))) or None

    def ended(self) -> bytes:
        """Return usage, if it was asked for, and [DONE]."""
        if not self._stream_options.include_usage:
            return DONE
        return frame(self._reply.usage(usage_of(self._choices))) + DONE

    def late_error(self, error: ApiError) -> bytes:
        """Return the envelope that answers have; no [DONE] follows."""
        return frame(error.envelope())

    def in_own_words(self, error: ApiError) -> ApiError:
        """Return the error: fields are called what they are."""
        return error

    def _chunks(self, choice: Choice, delta: Delta | None) -> Iterator[dict[str, Any]]:
        chunks: list[dict[str, Any] | None] = []
        if choice.plan.index not in self._opened:
            self._opened.add(choice.plan.index)
            chunks.append(self._reply.opening(choice))
        if delta is not None:
            chunks.append(self._reply.delta(choice, delta))
        if choice.finish is not None:
            chunks.append(self._reply.closing(choice))
        for chunk in filter(None, chunks):
            if self._stream_options.continuous_usage_stats:
                chunk["usage"] = usage_of(self._choices)
            elif self._stream_options.include_usage:
                chunk["usage"] = None
            yield chunk
