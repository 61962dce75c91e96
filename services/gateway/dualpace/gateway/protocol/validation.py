"""From a JSON object to a typed request, or to one 400 that names the fields at fault.

At most ten faults are told, and of what was sent only numbers and short strings: an answer must not
grow with the request.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dualpace.gateway.errors import ApiError
from dualpace.gateway.protocol import rules, unsupported
from dualpace.gateway.protocol.chat import ChatRequest
from dualpace.gateway.protocol.completions import CompletionRequest
from dualpace.gateway.protocol.generation import CommonRequest
from dualpace.gateway.protocol.responses import ResponsesRequest
from dualpace.gateway.protocol.wording import describe

_MAX_FAULTS = 10
_MAX_PARAM = 100

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R", bound=CommonRequest)


def parse_chat(body: Mapping[str, Any], *, strict: bool = False) -> ChatRequest:
    """Validate a chat request. Raises ApiError 400; if strict, for fields that nobody knows too."""
    return _parse(ChatRequest, body, unsupported.CHAT, (*rules.CHAT, *rules.TOOLS), strict)


def parse_completion(body: Mapping[str, Any], *, strict: bool = False) -> CompletionRequest:
    """Validate a completion request. Raises ApiError 400, as above."""
    return _parse(CompletionRequest, body, unsupported.COMPLETIONS, rules.COMPLETIONS, strict)


def parse_responses(body: Mapping[str, Any], *, strict: bool = False) -> ResponsesRequest:
    """Validate a request for a response. Raises ApiError 400, as above."""
    return _parse(ResponsesRequest, body, unsupported.RESPONSES, rules.RESPONSES, strict)


def parse_model(model: type[M], body: Mapping[str, Any]) -> M:
    """Validate a body by a model alone. Raises ApiError 400."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _as_api_error(error) from None


def _parse(
    model: type[R],
    body: Mapping[str, Any],
    neutral: unsupported.Neutral,
    table: Sequence[rules.Rule[R]],
    strict: bool,
) -> R:
    unsupported.refuse_unsupported(body, neutral)
    request = parse_model(model, body)
    unsupported.note_unknown(body, model.model_fields, neutral, strict=strict)
    rules.check(request, table)
    return request


def _as_api_error(error: ValidationError) -> ApiError:
    faults = error.errors(include_url=False)
    told = [f"{_param(fault['loc'])}: {describe(fault)}" for fault in faults[:_MAX_FAULTS]]
    if len(faults) > _MAX_FAULTS:
        told.append(f"and {len(faults) - _MAX_FAULTS} more")
    first = faults[0]
    return ApiError(
        400, "; ".join(told), param=_param(first["loc"]) or None, code=_code(first["type"])
    )


def _param(location: Sequence[int | str]) -> str:
    """Write a path as clients do: messages[0].content."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path[:_MAX_PARAM]


def _code(kind: str) -> str:
    if kind == "missing":
        return "missing_required_parameter"
    if kind in {"invalid_type", "unsupported_value"}:
        return kind
    return "invalid_type" if kind.endswith("_type") else "invalid_value"
