"""What fields mean together: one table of rules, each with the field that a client is told of.

A rule holds or is broken; it knows a request's fields and nothing of a model or engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dualpace.gateway.errors import invalid
from dualpace.gateway.protocol.chat import ChatRequest
from dualpace.gateway.protocol.completions import CompletionRequest
from dualpace.gateway.protocol.generation import CommonRequest, GenerationRequest
from dualpace.gateway.protocol.responses import LOGPROBS, ResponsesRequest
from dualpace.gateway.protocol.tools import NAMED

R = TypeVar("R", bound=CommonRequest)
R_contra = TypeVar("R_contra", bound=CommonRequest, contravariant=True)


@dataclass(frozen=True, slots=True)
class Rule(Generic[R_contra]):
    """`broken` says whether a request breaks it; then `message` is what `param` is told."""

    param: str
    message: str
    broken: Callable[[R_contra], bool]
    code: str = "invalid_value"


BOTH: tuple[Rule[GenerationRequest], ...] = (
    Rule(
        "stream_options",
        "is only allowed when stream is true",
        lambda r: r.stream_options is not None and not r.stream,
    ),
    Rule(
        "prompt_logprobs",
        "cannot be streamed; leave stream or prompt_logprobs out",
        lambda r: r.prompt_logprobs is not None and r.stream,
    ),
    Rule(
        "truncate_prompt_tokens",
        "must be 1 or more, or -1 for as many as fit",
        lambda r: r.truncate_prompt_tokens == 0,
    ),
    Rule(
        "min_tokens",
        "is more than max_tokens",
        lambda r: bool(r.max_tokens) and r.min_tokens > (r.max_tokens or 0),
    ),
    Rule(
        "structured_outputs",
        "must have exactly one of json, json_object, regex, choice and grammar",
        lambda r: r.structured_outputs is not None and len(r.structured_outputs.kinds()) != 1,
    ),
    Rule(
        "structured_outputs",
        "cannot be joined with response_format; leave one of them out",
        lambda r: r.structured_outputs is not None and _has_form(r),
    ),
)

CHAT: tuple[Rule[ChatRequest], ...] = (
    *BOTH,
    Rule(
        "top_logprobs",
        "needs logprobs to be true",
        lambda r: bool(r.top_logprobs) and not r.logprobs,
    ),
    Rule(
        "min_tokens",
        "is more than max_completion_tokens",
        lambda r: r.max_completion_tokens is not None and r.min_tokens > r.max_completion_tokens,
    ),
    Rule(
        "continue_final_message",
        "contradicts add_generation_prompt",
        lambda r: r.continue_final_message and r.add_generation_prompt is True,
    ),
    Rule(
        "continue_final_message",
        "needs a last message that is the assistant's and has text",
        lambda r: (
            r.continue_final_message
            and (r.messages[-1].role != "assistant" or not r.messages[-1].content)
        ),
    ),
)

TOOLS: tuple[Rule[ChatRequest], ...] = (
    Rule(
        "tool_choice",
        "needs tools to choose from",
        lambda r: r.tool_choice not in (None, "none") and not r.tools,
    ),
    Rule(
        "tool_choice",
        "names a function that is not among the tools",
        lambda r: (
            (r.tool_choice or "").startswith(NAMED)
            and r.tool_choice not in [f"{NAMED}{tool.function.name}" for tool in r.tools or ()]
        ),
    ),
    Rule(
        "tools",
        "cannot be joined with response_format or structured_outputs, except with tool_choice none",
        lambda r: (
            bool(r.tools)
            and r.tool_choice != "none"
            and (r.structured_outputs is not None or _has_form(r))
        ),
    ),
)

COMPLETIONS: tuple[Rule[CompletionRequest], ...] = (
    *BOTH,
    Rule(
        "max_tokens",
        "must be at least 1, except with echo",
        lambda r: r.max_tokens == 0 and not r.echo,
    ),
)

_NOTHING_KEPT = "unsupported_parameter"

RESPONSES: tuple[Rule[ResponsesRequest], ...] = (
    Rule(
        "store",
        "must be false or left out: no response is kept here",
        lambda r: r.store,
        _NOTHING_KEPT,
    ),
    Rule(
        "background",
        "must be false or left out: no response is kept here to be fetched later",
        lambda r: r.background,
        _NOTHING_KEPT,
    ),
    Rule(
        "previous_response_id",
        "names nothing: no response is kept here; send the whole conversation as input",
        lambda r: r.previous_response_id is not None,
        _NOTHING_KEPT,
    ),
    Rule(
        "stream_options",
        "is only allowed when stream is true",
        lambda r: r.stream_options is not None and not r.stream,
    ),
    Rule(
        "top_logprobs",
        f"needs {LOGPROBS} in include",
        lambda r: bool(r.top_logprobs) and LOGPROBS not in r.include,
    ),
    Rule(
        "min_tokens",
        "is more than max_output_tokens",
        lambda r: r.max_output_tokens is not None and r.min_tokens > r.max_output_tokens,
    ),
    Rule(
        "text.format",
        "needs a schema with type json_schema, and with no other",
        lambda r: (
            r.text is not None
            and r.text.format is not None
            and (r.text.format.type == "json_schema") != (r.text.format.definition is not None)
        ),
    ),
    Rule(
        "text.format",
        "needs a name with type json_schema",
        lambda r: (
            r.text is not None
            and r.text.format is not None
            and r.text.format.type == "json_schema"
            and r.text.format.name is None
        ),
    ),
    Rule(
        "tools",
        "cannot be joined with text.format, except with tool_choice none",
        lambda r: (
            bool(r.tools)
            and r.tool_choice != "none"
            and r.text is not None
            and r.text.format is not None
            and r.text.format.type != "text"
        ),
    ),
)


def _has_form(request: GenerationRequest) -> bool:
    return request.response_format is not None and request.response_format.type != "text"


def check(request: R, rules: Sequence[Rule[R]]) -> None:
    """Raise ApiError 400 for the first rule that the request breaks."""
    for rule in rules:
        if rule.broken(request):
            raise invalid(rule.param, rule.message, rule.code)
