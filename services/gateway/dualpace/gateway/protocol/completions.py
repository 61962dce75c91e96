"""Fields of POST /v1/completions."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from dualpace.core.request import MAX_LOGPROBS
from dualpace.gateway.protocol.fields import Flag, OnFlag, fault, whole_numbers
from dualpace.gateway.protocol.generation import GenerationRequest

RawPrompt = str | tuple[int, ...]
"""Text, or token ids."""

_KINDS = "a string, a list of strings, a list of token ids or a list of lists of token ids"


def _prompts(value: object) -> object:
    """Return every form of prompt as a tuple of prompts."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise fault(f"must be {_KINDS}", "invalid_type")
    if not value:
        raise fault("must not be empty")
    first = value[0]
    if isinstance(first, str) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if isinstance(first, list):
        return tuple(whole_numbers(item, _KINDS) for item in value)
    return (whole_numbers(value, _KINDS),)


class CompletionRequest(GenerationRequest):
    """One prompt or several to continue."""

    prompt: Annotated[
        tuple[RawPrompt, ...],
        BeforeValidator(
            _prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
        ),
    ]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: Flag = False
    add_special_tokens: OnFlag = True
    max_tokens: int | None = Field(default=None, ge=0)
    """0 is for `echo`: nothing is shown but the prompt."""
