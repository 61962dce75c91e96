"""Between the messages of `dualpace.v1` and the bodies and choices of the HTTP dialect."""

from collections.abc import Mapping, Sequence
from typing import Any

from dualpace.api.v1 import inference_pb2 as pb
from dualpace.gateway.choices import Choice, ChosenToken, Delta
from dualpace.gateway.errors import invalid
from dualpace.gateway.http.json_body import parse_json_object
from dualpace.gateway.protocol.tools import NAMED
from dualpace.gateway.replies.common import usage_of

_SAME = ("max_tokens", "min_tokens", "n", "priority")
_FLAGS = ("include_stop_str_in_output", "ignore_eos")
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def is_chat(request: pb.GenerateRequest) -> bool:
    """Whether a conversation is to be continued, and not a prompt."""
    return bool(request.WhichOneof("prompt") == "conversation")


def chat_body(request: pb.GenerateRequest) -> dict[str, Any]:
    """Return the body of the same chat request. Raises ApiError 400."""
    body = _common(request)
    body["messages"] = [_message(message) for message in request.conversation.messages]
    if request.HasField("logprobs"):
        body |= {"logprobs": True, "top_logprobs": request.logprobs}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    choice = request.tool_choice
    if choice.startswith(NAMED):
        function = {"name": choice.removeprefix(NAMED)}
        body["tool_choice"] = {"type": "function", "function": function}
    elif choice:
        body["tool_choice"] = choice
    return body


def completion_body(request: pb.GenerateRequest) -> dict[str, Any]:
    """Return the body of the same completion request. Raises ApiError 400."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise invalid("prompt", "is required: text, token_ids or conversation")
    if request.tools or request.tool_choice:
        raise invalid("tools", "need a conversation")
    body = _common(request)
    body["prompt"] = request.text if kind == "text" else list(request.token_ids.ids)
    if request.HasField("logprobs"):
        body["logprobs"] = request.logprobs
    return body


def _common(request: pb.GenerateRequest) -> dict[str, Any]:
    sampling = request.sampling
    body: dict[str, Any] = {name: getattr(request, name) for name in _FLAGS}
    body |= {name: getattr(request, name) for name in _SAME if request.HasField(name)}
    body |= {name: getattr(sampling, name) for name in _SAMPLING if sampling.HasField(name)}
    if request.model:
        body["model"] = request.model
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.allowed_token_ids:
        body["allowed_token_ids"] = list(sampling.allowed_token_ids)
    if request.stop:
        body["stop"] = list(request.stop)
    if request.stop_token_ids:
        body["stop_token_ids"] = list(request.stop_token_ids)
    form = _form(request.form)
    if form is not None:
        body["structured_outputs"] = form
    return body


def _form(form: pb.OutputForm) -> Mapping[str, Any] | None:
    match form.WhichOneof("form"):
        case None:
            return None
        case "json_object":
            return {"json_object": form.json_object} if form.json_object else None
        case "json_schema":
            return {"json": form.json_schema}
        case "choice":
            return {"choice": list(form.choice.choices)}
        case other:
            return {str(other): getattr(form, other)}


def _message(message: pb.Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role}
    for name in ("content", "name", "tool_call_id"):
        if message.HasField(name):
            fields[name] = getattr(message, name)
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.tool_calls
        ]
    return fields


def _tool(tool: pb.Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.HasField("description"):
        function["description"] = tool.description
    if tool.parameters_json:
        function["parameters"] = parse_json_object(tool.parameters_json.encode())
    return {"type": "function", "function": function}


class Answer:
    """Makes the parts of one answer."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self._choices = choices

    def part(self, choice: Choice, delta: Delta | None) -> pb.GenerateResponse | None:
        """Return what an event adds to the answer, if anything."""
        if delta is None and choice.finish is None:
            return None
        delta = delta or Delta("", ())
        tokens = delta.tokens
        if choice.finish is not None:
            tokens += choice.remaining()
        part = pb.GenerateResponse(
            index=choice.plan.index,
            text=delta.text,
            tokens=[_token(token) for token in tokens],
            tool_calls=[
                pb.ToolCall(id=c.call.call_id, name=c.call.name, arguments_json=c.call.arguments)
                for c in delta.calls
            ],
        )
        if choice.finish is not None:
            self._finish(part, choice)
        return part

    def _finish(self, part: pb.GenerateResponse, choice: Choice) -> None:
        assert choice.finish is not None
        part.finish_reason = choice.finish_reason
        stop = choice.finish.stop_reason
        if isinstance(stop, int):
            part.stop_token_id = stop
        elif stop is not None:
            part.stop_string = stop
        if all(other.finish is not None for other in self._choices):
            usage = usage_of(self._choices)
            part.usage.prompt_tokens = usage["prompt_tokens"]
            part.usage.completion_tokens = usage["completion_tokens"]


def _token(token: ChosenToken) -> pb.Token:
    logprobs = token.logprobs
    if logprobs is None:
        return pb.Token(id=token.token_id)
    top = [pb.TokenLogprob(token_id=i, logprob=value) for i, value in logprobs.top]
    return pb.Token(id=token.token_id, logprob=logprobs.chosen, top=top)
