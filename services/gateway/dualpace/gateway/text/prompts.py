"""From messages or prompts to token ids, in threads: no prompt holds up the event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from json import JSONDecodeError, loads
from typing import Any, TypeVar

from dualpace.gateway.errors import ApiError, context_length_exceeded, invalid
from dualpace.gateway.protocol.chat import ChatMessage, ToolCall
from dualpace.gateway.protocol.completions import RawPrompt
from dualpace.gateway.text.chat_template import (
    ChatTemplate,
    TemplateRefusalError,
    TemplateTooLongError,
)
from dualpace.gateway.text.model import ServedModel
from dualpace.gateway.tools.prompt import with_tools

T = TypeVar("T")

_UNBOUNDED = 1 << 62

_NORMALIZER_SHRINKAGE = 4
"""No Unicode normal form makes one character out of more than four; others in use shrink less."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt for the engines; `text` is what the client sent, None for token ids."""

    token_ids: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class EncodingOptions:
    """How text becomes tokens."""

    add_special_tokens: bool = True
    """Whether the tokenizer puts its BOS token first."""
    keep_last: int | None = None
    """A longer prompt loses its beginning; None: it is taken whole, or refused."""

    def cut(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return as much as is kept."""
        return token_ids if self.keep_last is None else token_ids[-self.keep_last :]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a conversation becomes text, and that becomes tokens."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The text ends with the last message's content, which the model then continues."""
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, str]] | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    encoding: EncodingOptions = EncodingOptions(add_special_tokens=False)
    """By default without special tokens: templates write them, and a second BOS does harm."""


class PromptBuilder:
    """Tokenizes for one model. Close it to stop its threads."""

    def __init__(self, model: ServedModel, *, num_threads: int) -> None:
        self._model = model
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")

    def close(self) -> None:
        """Stop the threads; what is queued is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        max_model_len: int,
        options: ChatOptions = ChatOptions(),
    ) -> TokenizedPrompt:
        """Render and tokenize a conversation. Raises ApiError 400."""
        template = self._model.template
        if template is None:
            message = "the served model has no chat template; use /v1/completions"
            raise invalid("messages", message, "unsupported_model")
        return await self.in_thread(lambda: self._chat(template, messages, max_model_len, options))

    async def completions(
        self,
        prompts: Sequence[RawPrompt],
        max_model_len: int,
        options: EncodingOptions = EncodingOptions(),
    ) -> list[TokenizedPrompt]:
        """Tokenize prompts. Raises ApiError 400."""

        def work() -> list[TokenizedPrompt]:
            return [self._completion(prompt, max_model_len, options) for prompt in prompts]

        if not any(isinstance(prompt, str) for prompt in prompts):
            return work()
        return await self.in_thread(work)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Return what work returns, done in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _chat(
        self,
        template: ChatTemplate,
        messages: Sequence[ChatMessage],
        max_model_len: int,
        options: ChatOptions,
    ) -> TokenizedPrompt:
        limit = self._max_characters(max_model_len)
        if options.encoding.keep_last is not None:
            limit = _UNBOUNDED  # by this; a request's size bounds it still
        try:
            told = [_template_message(message, template) for message in messages]
            if options.tools and not template.knows_tools:
                told = with_tools(told, options.tools)
            elif _tells_of_calls(messages) and not template.knows_calls:
                told = with_tools(told, ())
            text = template.render(
                told,
                max_characters=limit,
                tools=options.tools,
                documents=options.documents,
                add_generation_prompt=options.add_generation_prompt,
                variables=options.template_variables,
            )
            if options.continue_final_message:
                text = _up_to_content(text, messages[-1].content or "")
        except TemplateTooLongError as error:
            message = f"{error}; no more than {max_model_len} tokens fit"
            raise context_length_exceeded("messages", message) from None
        except TemplateRefusalError as error:
            raise invalid("messages", str(error)) from None
        return TokenizedPrompt(self._encode(text, "messages", options.encoding))

    def _completion(
        self, prompt: RawPrompt, max_model_len: int, options: EncodingOptions
    ) -> TokenizedPrompt:
        if not isinstance(prompt, str):
            if not prompt:
                raise _empty_prompt("prompt")
            return TokenizedPrompt(options.cut(prompt))
        limit = self._max_characters(max_model_len)
        if len(prompt) > limit and options.keep_last is None:
            raise context_length_exceeded(
                "prompt",
                f"its {len(prompt)} characters cannot fit into {max_model_len} tokens, the longest "
                "context that is served",
            )
        token_ids = self._encode(prompt, "prompt", options)
        return TokenizedPrompt(token_ids, prompt if options.keep_last is None else None)

    def _encode(self, text: str, param: str, options: EncodingOptions) -> tuple[int, ...]:
        try:
            text.encode()
        except UnicodeEncodeError:  # written as an escape within JSON that was text itself
            raise invalid(param, "has an unpaired surrogate, which is not text") from None
        # Encoding a single text holds the interpreter lock all along; a batch of one does not.
        [encoding] = self._model.tokenizer.encode_batch_fast(
            [text], add_special_tokens=options.add_special_tokens
        )
        token_ids = tuple(encoding.ids)
        if not token_ids:
            raise _empty_prompt(param)
        return options.cut(token_ids)

    def _max_characters(self, max_model_len: int) -> int:
        """Return a length that no text that fits can have: spares tokenizing the hopeless."""
        return max_model_len * self._model.longest_token * _NORMALIZER_SHRINKAGE


def _tells_of_calls(messages: Sequence[ChatMessage]) -> bool:
    return any(message.role == "tool" or message.tool_calls for message in messages)


def _up_to_content(text: str, content: str) -> str:
    """Return a rendered conversation up to the end of its last message's content."""
    for wanted in (content, content.strip()):
        begin = text.rfind(wanted)
        if begin >= 0:
            return text[: begin + len(wanted)]
    raise TemplateRefusalError("the chat template changes the last message: it cannot be continued")


def _empty_prompt(param: str) -> ApiError:
    return invalid(param, "must not be empty: there is nothing to continue")


def _template_message(message: ChatMessage, template: ChatTemplate) -> dict[str, Any]:
    """Return a message as templates expect it: arguments of calls as objects, no nulls."""
    role = message.role
    if role == "developer" and not template.knows_developer:
        role = "system"
    fields: dict[str, Any] = {"role": role, "content": message.content or ""}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return fields


def _template_call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = loads(call.function.arguments) if call.function.arguments else {}
    except (JSONDecodeError, RecursionError, ValueError):
        raise invalid("messages", "the arguments of a tool call are not JSON") from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}
