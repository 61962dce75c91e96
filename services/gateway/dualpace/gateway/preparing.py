"""From a validated request to choices that can run: names, prompts, forms, tools, limits.

The same for every front: HTTP and gRPC differ in how requests come and how answers look.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dualpace.gateway.choices import Choice, TextOptions, start_choices
from dualpace.gateway.errors import invalid
from dualpace.gateway.limits.urgency import Urgency
from dualpace.gateway.planning import (
    ChoicePlan,
    Timing,
    chat_limit,
    check_choice_count,
    completion_limit,
    kept_tokens,
    plan_choices,
)
from dualpace.gateway.protocol.chat import ChatRequest
from dualpace.gateway.protocol.completions import CompletionRequest
from dualpace.gateway.protocol.generation import GenerationRequest
from dualpace.gateway.serving import Gateway
from dualpace.gateway.text.chat_template import ChatTemplate
from dualpace.gateway.text.output_grammar import OutputGrammar, call_grammar, output_grammar
from dualpace.gateway.text.prompts import ChatOptions, EncodingOptions
from dualpace.gateway.tools.dialect import Dialect

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Tools:
    dialect: Dialect
    parallel: bool


class Preparation:
    """Prepares requests of one gateway.

    `wait` awaits work that takes a while: it gives up when the client leaves.
    """

    def __init__(
        self,
        gateway: Gateway,
        wait: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]],
        urgency: Urgency,
    ) -> None:
        self._gateway = gateway
        self._wait = wait
        self._urgency = urgency

    async def chat(self, request: ChatRequest) -> list[Choice]:
        """Return the choices of a conversation, none begun. Raises ApiError."""
        gateway = self._gateway
        check_choice_count(request, 1, gateway.settings.max_choices)
        info = gateway.lifecycle.node_info()
        tools = self._tools(request)
        options = chat_options(
            request, info.max_model_len, gateway.model.template, with_tools=tools is not None
        )
        prompt = await self._wait(
            gateway.prompts.chat(request.messages, info.max_model_len, options)
        )
        grammar = await self._form(request)
        if tools is not None:
            grammar = call_grammar(request, tools.dialect) or grammar
        plans = plan_choices(
            request,
            [prompt],
            prompt_param="messages",
            limit=chat_limit(request),
            logprobs=chat_logprobs(request),
            prompt_logprobs=request.prompt_logprobs,
            grammar=grammar,
            timing=self._timing(request),
            model=gateway.model,
            info=info,
        )
        return self._choices(request, plans, tools)

    async def completion(self, request: CompletionRequest) -> list[Choice]:
        """Return the choices of prompts, none begun. Raises ApiError."""
        gateway = self._gateway
        check_choice_count(request, len(request.prompt), gateway.settings.max_choices)
        info = gateway.lifecycle.node_info()
        limit = completion_limit(request)
        encoding = EncodingOptions(
            request.add_special_tokens, kept_tokens(request, limit, info.max_model_len)
        )
        work = gateway.prompts.completions(request.prompt, info.max_model_len, encoding)
        # Token ids are prompts already; nobody leaves in no time.
        texts = any(isinstance(prompt, str) for prompt in request.prompt)
        prompts = await (self._wait(work) if texts else work)
        plans = plan_choices(
            request,
            prompts,
            prompt_param="prompt",
            limit=limit,
            logprobs=request.logprobs,
            prompt_logprobs=_prompt_logprobs(request),
            grammar=await self._form(request),
            timing=self._timing(request),
            model=gateway.model,
            info=info,
        )
        return self._choices(request, plans, None)

    def _timing(self, request: GenerationRequest) -> Timing:
        """Return when the request is to be served, as engines are told."""
        target_s = self._urgency.first_token_s
        if target_s is None:
            target_s = self._gateway.settings.first_token_target_s
        return Timing(self._urgency.priority_of(request), target_s, self._urgency.token_s)

    async def _form(self, request: GenerationRequest) -> OutputGrammar | None:
        """Return the grammar that the text must follow, written in a thread."""
        if request.structured_outputs is None and request.response_format is None:
            return None
        work = self._gateway.prompts.in_thread(lambda: output_grammar(request))
        grammar: OutputGrammar | None = await self._wait(work)
        return grammar

    def _tools(self, request: ChatRequest) -> _Tools | None:
        """Return how tools are called, if any may be."""
        if not request.tools or request.tool_choice == "none":
            return None
        dialect = self._gateway.model.tool_dialect
        if dialect is None:
            message = "the model calls tools in a form that is not known here; see tool_dialect"
            raise invalid("tools", message, "unsupported_model")
        return _Tools(dialect, request.parallel_tool_calls)

    def _choices(
        self, request: GenerationRequest, plans: Sequence[ChoicePlan], tools: _Tools | None
    ) -> list[Choice]:
        model = self._gateway.model
        # An end token of the model is no stop of the client's, even where the client lists it.
        model_ends = frozenset(() if request.ignore_eos else model.eos_token_ids)
        tags = () if tools is None else tools.dialect.tags
        tag_ids = (model.tokenizer.token_to_id(tag) for tag in tags)
        options = TextOptions(
            stop_strings=request.stop,
            client_stop_token_ids=frozenset(request.stop_token_ids) - model_ends,
            include_stop=request.include_stop_str_in_output,
            show_special=not request.skip_special_tokens,
            min_tokens=request.min_tokens,
            visible_ids=frozenset(token_id for token_id in tag_ids if token_id is not None),
            call_parser=None if tools is None else tools.dialect.parser,
            max_calls=1 if tools is not None and not tools.parallel else None,
        )
        return start_choices(plans, model.token_text, options)


def chat_options(
    request: ChatRequest, max_model_len: int, template: ChatTemplate | None, *, with_tools: bool
) -> ChatOptions:
    """Return how a conversation becomes a prompt. Raises ApiError 400."""
    generation_prompt = request.add_generation_prompt
    if generation_prompt is None:
        generation_prompt = not request.continue_final_message
    tools = request.tools if with_tools else None
    return ChatOptions(
        add_generation_prompt=generation_prompt,
        continue_final_message=request.continue_final_message,
        tools=[tool.for_template() for tool in tools] if tools else None,
        documents=_documents(request, template),
        template_variables={**_effort(request, template), **request.chat_template_kwargs},
        encoding=EncodingOptions(
            request.add_special_tokens, kept_tokens(request, chat_limit(request), max_model_len)
        ),
    )


def _documents(request: ChatRequest, template: ChatTemplate | None) -> list[dict[str, str]] | None:
    """Return the documents for the template; one that does not know them would drop them."""
    if not request.documents:
        return None
    if template is not None and not template.knows_documents:
        message = "the model's chat template knows no documents; put them into a message"
        raise invalid("documents", message, "unsupported_model")
    return [document.model_dump() for document in request.documents]


def _effort(request: ChatRequest, template: ChatTemplate | None) -> dict[str, Any]:
    """Return the variables that tell a template how much the model is to think."""
    effort = request.reasoning_effort
    if effort is None or template is None:
        return {}
    variables: dict[str, Any] = {}
    if template.knows_effort:
        variables["reasoning_effort"] = effort
    if template.knows_thinking:
        variables["enable_thinking"] = effort != "none"
    if not variables and effort != "none":
        message = "the model's chat template knows of no reasoning; leave it out, or say 'none'"
        raise invalid("reasoning_effort", message, "unsupported_model")
    return variables


def chat_logprobs(request: ChatRequest) -> int | None:
    """Return how many alternatives to report: 0 is the chosen token alone, None nothing."""
    return (request.top_logprobs or 0) if request.logprobs else None


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    """Return how many alternatives the engines report for the prompt: `echo` shows them as well."""
    echoed = request.logprobs if request.echo else None
    return max((n for n in (request.prompt_logprobs, echoed) if n is not None), default=None)
