"""Fields of POST /v1/responses, as far as a server that keeps nothing can have them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from dualpace.core.request import MAX_LOGPROBS
from dualpace.gateway.errors import shorten
from dualpace.gateway.protocol.content import MAX_MESSAGES, content_of
from dualpace.gateway.protocol.fields import Flag, OnFlag, StrictModel, fault
from dualpace.gateway.protocol.generation import CommonRequest, Effort
from dualpace.gateway.protocol.outputs import Schema
from dualpace.gateway.protocol.tools import MAX_TOOLS, NAMED

LOGPROBS = "message.output_text.logprobs"
"""The one thing to include that this server ever has."""

INCLUDABLE = (
    LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""The others belong to items that never occur here; clients ask for them as a matter of course."""

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512

_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
}
_ITEMS = ("message", "function_call", "function_call_output")
_NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}

Text = Annotated[
    str | None,
    BeforeValidator(
        content_of(_TEXT_PARTS), json_schema_input_type=str | list[dict[str, Any]] | None
    ),
]


def _item_type(value: object) -> object:
    if value is None:
        return "message"
    if value not in _ITEMS:
        allowed = ", ".join(_ITEMS)
        raise fault(
            f"items of type {shorten(value, 40)} are not supported; these are: {allowed}",
            "unsupported_value",
        )
    return value


class InputItem(StrictModel):
    """A message, a call that the model made, or what the called function returned."""

    type: Annotated[
        Literal["message", "function_call", "function_call_output"],
        BeforeValidator(_item_type),
    ] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Text = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> "InputItem":
        for name in _NEEDED[self.type]:
            if getattr(self, name) is None:
                reason = {"reason": f"an item of type {self.type} needs '{name}'"}
                raise PydanticCustomError("missing", "{reason}", reason)
        return self


def _items(value: object) -> object:
    """Return plain text as the user's message."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise fault("must be a string or a list of items", "invalid_type")
    if len(value) > MAX_MESSAGES:  # before each is looked at, which would take seconds
        raise fault(f"may have {MAX_MESSAGES} items, not {len(value)}")
    return value


def _tools(value: object) -> object:
    if isinstance(value, list) and len(value) > MAX_TOOLS:
        raise fault(f"may have {MAX_TOOLS} tools, not {len(value)}")
    return [] if value is None else value


class FunctionTool(StrictModel):
    """A function that the model may call; there are no other tools here."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def _tool_choice(value: object) -> object:
    """Return none, auto, required, or the named function as `function:<name>`."""
    if value is None or value in ("none", "auto", "required"):
        return value
    if not isinstance(value, dict):
        raise fault("must be none, auto, required, or an object that names a function")
    if value.get("type") != "function" or not isinstance(value.get("name"), str):
        raise fault('must be {"type": "function", "name": …} to name a function')
    return f"{NAMED}{value['name']}"


class TextFormat(StrictModel):
    """What form the text must have; a schema is always kept to, `strict` or not."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(default=None, min_length=1, max_length=256)
    description: str | None = None
    definition: Schema = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(StrictModel):
    """How the text is to be."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(StrictModel):
    """How much a model thinks; thoughts are not summed up here, so `auto` asks for nothing."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None


class ResponseStreamOptions(StrictModel):
    """Options of a stream."""

    include_obfuscation: Literal[False] | None = None


def _include(value: object) -> object:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise fault("must be a list of strings", "invalid_type")
    for name in value:
        if name not in INCLUDABLE:
            raise fault(f"{shorten(name, 80)} is nothing that can be included")
    return tuple(dict.fromkeys(value))


def _metadata(value: object) -> object:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise fault("must be an object of strings", "invalid_type")
    if len(value) > MAX_METADATA:
        raise fault(f"at most {MAX_METADATA} entries are allowed")
    if any(len(k) > MAX_METADATA_KEY or len(v) > MAX_METADATA_VALUE for k, v in value.items()):
        raise fault(f"keys may have {MAX_METADATA_KEY} characters and values {MAX_METADATA_VALUE}")
    return value


class ResponsesRequest(CommonRequest):
    """A conversation to continue, all of it in the request."""

    input: Annotated[
        list[InputItem], BeforeValidator(_items, json_schema_input_type=str | list[InputItem])
    ] = Field(min_length=1, fail_fast=True)
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    tools: Annotated[list[FunctionTool], BeforeValidator(_tools)] = Field(
        default=[], fail_fast=True
    )
    tool_choice: Annotated[
        str | None,
        BeforeValidator(_tool_choice, json_schema_input_type=str | dict[str, Any] | None),
    ] = None
    parallel_tool_calls: OnFlag = True
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: Annotated[
        tuple[str, ...],
        BeforeValidator(_include, json_schema_input_type=list[str] | None),
    ] = ()
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    metadata: Annotated[
        dict[str, str],
        BeforeValidator(_metadata, json_schema_input_type=dict[str, str] | None),
    ] = Field(default={})
    stream_options: ResponseStreamOptions | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    store: Flag = False
    background: Flag = False
    previous_response_id: str | None = None
