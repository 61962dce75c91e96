"""Fields of POST /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from dualpace.core.request import MAX_LOGPROBS
from dualpace.gateway.protocol.content import MAX_MESSAGES, content_of
from dualpace.gateway.protocol.fields import Flag, OnFlag, StrictModel, fault
from dualpace.gateway.protocol.generation import Effort, GenerationRequest
from dualpace.gateway.protocol.tools import ToolChoice, Tools

Content = Annotated[
    str | None,
    BeforeValidator(
        content_of({"text": "text"}), json_schema_input_type=str | list[dict[str, Any]] | None
    ),
]


class FunctionCall(StrictModel):
    """A function that the assistant called earlier; `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(StrictModel):
    """One call within an assistant message of the history."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(StrictModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = Field(default=None, fail_fast=True)

    @field_validator("tool_calls")
    @classmethod
    def _calls_are_the_assistants(
        cls, calls: list[ToolCall] | None, info: Any
    ) -> list[ToolCall] | None:
        if calls and info.data.get("role", "assistant") != "assistant":
            raise fault("only an assistant message has tool calls")
        return calls


class Document(StrictModel):
    """Something to answer from; templates that know documents say where it stands."""

    title: str = ""
    text: str


def _not_too_many(messages: object) -> object:
    """Count before anything is looked at: validating a body full of messages takes seconds."""
    if isinstance(messages, list):
        calls = (m.get("tool_calls") for m in messages if isinstance(m, dict))
        count = len(messages) + sum(len(c) for c in calls if isinstance(c, list))
        if count > MAX_MESSAGES:
            raise fault(f"may have {MAX_MESSAGES} messages and tool calls together, not {count}")
    return messages


_Bounded = Annotated[
    list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
]
Messages = Annotated[_Bounded, BeforeValidator(_not_too_many, json_schema_input_type=_Bounded)]


class ChatRequest(GenerationRequest):
    """A conversation to continue."""

    messages: Messages
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: Flag = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool | None = None
    """Unset: yes, unless the last message is continued."""
    continue_final_message: Flag = False
    add_special_tokens: Flag = False
    tools: Tools = None
    tool_choice: ToolChoice = None
    """Unset: auto with tools, none without."""
    parallel_tool_calls: OnFlag = True
    documents: list[Document] | None = Field(default=None, max_length=MAX_MESSAGES, fail_fast=True)
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @field_validator("messages")
    @classmethod
    def _messages_say_something(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        for index, message in enumerate(messages):
            if message.content is None and not message.tool_calls:
                raise PydanticCustomError(
                    "missing", "message {index} has no content", {"index": index}
                )
        return messages
