"""The `response` object of /v1/responses, whole and as a stream of typed, numbered events."""

from collections.abc import Sequence
from typing import Any

from dualpace.gateway.choices import Choice, Delta
from dualpace.gateway.errors import ApiError
from dualpace.gateway.http.sse import named_frame
from dualpace.gateway.protocol.responses import ResponsesRequest, TextFormat
from dualpace.gateway.protocol.responses_as_chat import own_error
from dualpace.gateway.protocol.tools import NAMED
from dualpace.gateway.replies.common import ReplyOptions, extras, usage_of
from dualpace.gateway.replies.response_items import Event, OutputItems


class ResponsePresentation:
    """Implements Presentation for one response, which has one choice."""

    def __init__(self, request: ResponsesRequest, choice: Choice, options: ReplyOptions) -> None:
        self._request = request
        self._choice = choice
        self.options = options
        self._items = OutputItems(options)
        self._next_number = 0

    def whole(self, shown: Sequence[Sequence[Delta]]) -> dict[str, Any]:
        """Return the response."""
        for delta in shown[0]:
            list(self._items.push(delta))
        list(self._items.close(self._message_status()))
        return self._ended()

    def added(self, _: Choice, delta: Delta | None) -> bytes | None:
        """Return a frame for each event; the first begin with response.created."""
        frames: list[bytes] = []
        if self._next_number == 0:
            frames += [
                self._response_frame(kind, self._object("in_progress"))
                for kind in ("created", "in_progress")
            ]
        if delta is not None:
            frames += map(self._frame, self._items.push(delta))
        return b"".join(frames) or None

    def ended(self) -> bytes:
        """Return what closes the last item, and response.completed or incomplete."""
        last = Delta("", self._choice.remaining())
        frames = [*map(self._frame, self._items.push(last))]
        frames += map(self._frame, self._items.close(self._message_status()))
        ended = self._ended()
        return b"".join((*frames, self._response_frame(ended["status"], ended)))

    def late_error(self, error: ApiError) -> bytes:
        """Return response.failed; before response.created, an error event by itself."""
        if self._next_number == 0:
            return named_frame("error", {"type": "error", **error.envelope()})
        failed = self._object("failed", self._items.so_far("incomplete"))
        # Clients know a closed list of codes; the message tells what it was.
        failed["error"] = {"code": "server_error", "message": error.message}
        return self._response_frame("failed", failed)

    def in_own_words(self, error: ApiError) -> ApiError:
        """Return the error as this route calls fields that chat calls otherwise."""
        return own_error(error)

    def _frame(self, event: Event) -> bytes:
        event["sequence_number"] = self._next_number
        self._next_number += 1
        return named_frame(event["type"], event)

    def _response_frame(self, kind: str, response: dict[str, Any]) -> bytes:
        return self._frame({"type": f"response.{kind}", "response": response})

    def _message_status(self) -> str:
        return "incomplete" if self._choice.finish_reason == "length" else "completed"

    def _ended(self) -> dict[str, Any]:
        status = self._message_status()
        response = self._object(status, self._items.so_far(status))
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["usage"] = _usage(self._choice)
        return response | extras(self._choice, self.options)

    def _object(self, status: str, output: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        request, options = self._request, self.options
        sampling = self._choice.plan.params.sampling
        return {
            "id": options.reply_id,
            "object": "response",
            "created_at": options.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata,
            "model": options.model,
            "output": list(output),
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {
                "effort": None if request.reasoning is None else request.reasoning.effort,
                "summary": None,
            },
            "service_tier": "default",
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": _format(request), "verbosity": "medium"},
            "tool_choice": _tool_choice(request),
            "tools": [tool.model_dump() for tool in request.tools],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": request.user,
        }


def _usage(choice: Choice) -> dict[str, Any]:
    counts = usage_of([choice])
    return {
        "input_tokens": counts["prompt_tokens"],
        # No prompt is ever kept for another request.
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
    }


def _format(request: ResponsesRequest) -> dict[str, Any]:
    asked = None if request.text is None else request.text.format
    if asked is None:
        asked = TextFormat(type="text")
    return asked.model_dump(by_alias=True, exclude_none=True)


def _tool_choice(request: ResponsesRequest) -> object:
    choice = request.tool_choice
    if choice is None:
        return "auto"
    if choice.startswith(NAMED):
        return {"type": "function", "name": choice.removeprefix(NAMED)}
    return choice
