"""A request for a response as the chat request that it amounts to; errors back in its own words.

So there is one way from a conversation to tokens; only how it is asked for and shown differs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dualpace.gateway.errors import ApiError
from dualpace.gateway.protocol.generation import CommonRequest
from dualpace.gateway.protocol.responses import LOGPROBS, InputItem, ResponsesRequest
from dualpace.gateway.protocol.tools import NAMED

_OWN_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}


def own_error(error: ApiError) -> ApiError:
    """Return an error that names a field as this route calls it, where chat has another name."""
    own = _OWN_NAMES.get(error.param or "")
    if own is None or error.param is None:
        return error
    return ApiError(
        error.status,
        own + error.message.removeprefix(error.param),
        kind=error.kind,
        param=own,
        code=error.code,
        headers=error.headers,
    )


@contextmanager
def in_own_words() -> Iterator[None]:
    """Raise errors as `own_error` has them."""
    try:
        yield
    except ApiError as error:
        raise own_error(error) from None


def chat_body(request: ResponsesRequest, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the chat request; fields that both have are passed on as they came."""
    chat = {name: body[name] for name in CommonRequest.model_fields if name in body}
    chat["messages"] = _messages(request)
    chat["chat_template_kwargs"] = request.chat_template_kwargs
    chat["parallel_tool_calls"] = request.parallel_tool_calls
    chat["max_completion_tokens"] = request.max_output_tokens
    if LOGPROBS in request.include:
        chat |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.reasoning is not None:
        chat["reasoning_effort"] = request.reasoning.effort
    if request.tools:
        chat["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude={"type"})}
            for tool in request.tools
        ]
    chat["tool_choice"] = _tool_choice(request.tool_choice)
    chat["response_format"] = _response_format(request)
    return chat


def _tool_choice(choice: str | None) -> object:
    if choice is None or not choice.startswith(NAMED):
        return choice
    return {"type": "function", "function": {"name": choice.removeprefix(NAMED)}}


def _response_format(request: ResponsesRequest) -> dict[str, Any] | None:
    if request.text is None or request.text.format is None:
        return None
    asked = request.text.format
    if asked.type != "json_schema":
        return {"type": asked.type}
    schema = asked.model_dump(exclude={"type"}, by_alias=True)
    return {"type": asked.type, "json_schema": schema}


def _messages(request: ResponsesRequest) -> list[dict[str, Any]]:
    """Return the conversation. Calls belong to the assistant's message right before them."""
    messages: list[dict[str, Any]] = []
    if request.instructions is not None:
        messages.append({"role": "system", "content": request.instructions})
    for item in request.input:
        if item.type == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(_call(item))
        elif item.type == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        else:
            messages.append({"role": item.role, "content": item.content})
    return messages


def _call(item: InputItem) -> dict[str, Any]:
    function = {"name": item.name, "arguments": item.arguments}
    return {"id": item.call_id, "type": "function", "function": function}
