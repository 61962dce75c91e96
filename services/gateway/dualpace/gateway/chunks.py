"""Answers as OpenAI's older routes have them: one object, or chunks that end with [DONE]."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from dualpace.gateway.choices import Choice, Delta
from dualpace.gateway.errors import ApiError
from dualpace.gateway.plain_frames import PlainFrames
from dualpace.gateway.presentation import Events
from dualpace.gateway.protocol.generation import StreamOptions
from dualpace.gateway.replies.common import Reply, ReplyOptions, usage_of
from dualpace.gateway.sse import DONE, frame


class Chunks:
    """Implements Presentation for chat and text completions; what each shows is its `Reply`'s."""

    def __init__(self, choices: Sequence[Choice], reply: Reply, options: StreamOptions) -> None:
        self._choices = choices
        self._reply = reply
        self._stream_options = options

    @property
    def options(self) -> ReplyOptions:
        """What the client wants to see of it."""
        return self._reply.options

    def whole(self, shown: Sequence[Sequence[Delta]]) -> dict[str, Any]:
        """Return the answer in one object."""
        return self._reply.whole(self._choices, shown, usage_of(self._choices))

    async def frames(self, events: Events) -> AsyncGenerator[bytes, None]:
        """Yield a frame for each chunk."""
        opened: set[int] = set()
        plain = PlainFrames(self._reply, self._stream_options)
        async with aclosing(events):
            async for choice, delta in events:
                if delta is not None and choice.finish is None and choice.plan.index in opened:
                    data = plain.frame(choice, delta)
                    if data is not None:
                        yield data
                        continue
                for chunk in self._chunks(choice, delta, opened):
                    yield frame(chunk)
        if self._stream_options.include_usage:
            yield frame(self._reply.usage(usage_of(self._choices)))
        yield DONE

    def late_error(self, error: ApiError) -> bytes:
        """Return the envelope that answers have; no [DONE] follows."""
        return frame(error.envelope())

    def _chunks(
        self, choice: Choice, delta: Delta | None, opened: set[int]
    ) -> Iterator[dict[str, Any]]:
        """Yield what an event adds to the stream: at most an opening, a delta and a closing."""
        chunks: list[dict[str, Any] | None] = []
        if choice.plan.index not in opened:
            opened.add(choice.plan.index)
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
