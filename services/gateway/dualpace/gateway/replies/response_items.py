"""The output items of a response, and the events that tell of them while they come to be.

Text makes a message, a tool call an item of its own; text after a call begins another message.
Events lack nothing but their sequence numbers.
"""

from collections.abc import Iterator
from typing import Any

from dualpace.gateway.choices import Delta
from dualpace.gateway.replies.common import ReplyOptions, listed_token, new_id
from dualpace.gateway.tools.calls import ToolCall

Event = dict[str, Any]


class OutputItems:
    """Items of one response; feed it deltas, then close it."""

    def __init__(self, options: ReplyOptions) -> None:
        self._options = options
        self._done: list[dict[str, Any]] = []
        self._message_id: str | None = None
        """Of the message that text goes to; None: text begins one."""
        self._text: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def so_far(self, status: str) -> list[dict[str, Any]]:
        """Return the items; one that is not complete has this status."""
        if self._message_id is None:
            return list(self._done)
        return [*self._done, self._message(self._message_id, status, [self._part()])]

    def push(self, delta: Delta) -> Iterator[Event]:
        """Take more of the answer; yield what it adds. Exhaust it, or text is lost."""
        logprobs = self._listed(delta)
        if delta.text:
            if self._message_id is None:
                yield from self._open()
            self._text.append(delta.text)
            self._logprobs += logprobs
            yield self._event("output_text.delta", delta=delta.text, logprobs=logprobs)
        elif self._message_id is not None:  # tokens that ended the text and show nothing
            self._logprobs += logprobs
        for indexed in delta.calls:
            yield from self._close("completed")
            yield from self._call(indexed.call)

    def close(self, status: str) -> Iterator[Event]:
        """Yield what ends the last message. An answer of nothing is a message without text."""
        if not self._done and self._message_id is None:
            yield from self._open()
        yield from self._close(status)

    def _open(self) -> Iterator[Event]:
        self._message_id = new_id("msg_")
        self._text, self._logprobs = [], []
        item = self._message(self._message_id, "in_progress", [])
        yield self._item_event("added", item)
        yield self._event("content_part.added", part=self._part())

    def _close(self, status: str) -> Iterator[Event]:
        if self._message_id is None:
            return
        part = self._part()
        yield self._event("output_text.done", text=part["text"], logprobs=part["logprobs"])
        yield self._event("content_part.done", part=part)
        item = self._message(self._message_id, status, [part])
        yield self._item_event("done", item)
        self._done.append(item)
        self._message_id = None

    def _call(self, call: ToolCall) -> Iterator[Event]:
        """Yield a call, which comes in one piece: whatever is not complete is no call."""
        item = {
            "id": new_id("fc_"),
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
        }
        where = {"item_id": item["id"], "output_index": len(self._done)}
        yield self._item_event("added", item | {"arguments": "", "status": "in_progress"})
        kind = "response.function_call_arguments"
        yield {"type": f"{kind}.delta", **where, "delta": call.arguments}
        yield {"type": f"{kind}.done", **where, "name": call.name, "arguments": call.arguments}
        done = item | {"arguments": call.arguments, "status": "completed"}
        yield self._item_event("done", done)
        self._done.append(done)

    def _event(self, kind: str, **fields: Any) -> Event:
        """Return an event of the open message's only part."""
        place = {"output_index": len(self._done), "content_index": 0}
        return {"type": f"response.{kind}", "item_id": self._message_id, **place, **fields}

    def _item_event(self, kind: str, item: dict[str, Any]) -> Event:
        place = {"output_index": len(self._done)}
        return {"type": f"response.output_item.{kind}", **place, "item": item}

    def _message(
        self, message_id: str, status: str, content: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "id": message_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": "".join(self._text),
            "annotations": [],
            "logprobs": list(self._logprobs),
        }

    def _listed(self, delta: Delta) -> list[dict[str, Any]]:
        if self._options.logprobs is None:
            return []
        return [listed_token(token, self._options) for token in delta.tokens]
