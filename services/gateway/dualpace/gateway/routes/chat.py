"""POST /v1/chat/completions."""

from starlette.requests import Request
from starlette.responses import Response

from dualpace.gateway.errors import invalid
from dualpace.gateway.output_grammar import call_grammar
from dualpace.gateway.planning import chat_limit, check_choice_count, kept_tokens, plan_choices
from dualpace.gateway.prompts import ChatOptions, EncodingOptions
from dualpace.gateway.protocol.chat import ChatRequest
from dualpace.gateway.replies.chat import ChatReply
from dualpace.gateway.routes.generation import ToolOptions, constrained, job_for, reply_options
from dualpace.gateway.serving import Exchange, Gateway
from dualpace.gateway.validation import parse_chat


async def chat_completions(gateway: Gateway, http_request: Request) -> Response:
    """Continue a conversation."""
    exchange = Exchange(gateway, http_request)
    with exchange.running():
        request = parse_chat(await exchange.body())
        exchange.name(request.request_id)
        name = gateway.served_name(request.model)
        check_choice_count(request, 1, gateway.settings.max_choices)
        info = gateway.lifecycle.node_info()
        tools = _tools(gateway, request)
        prompt = await exchange.while_connected(
            gateway.prompts.chat(
                request.messages,
                info.max_model_len,
                _chat_options(request, tools, info.max_model_len),
            )
        )
        logprobs = _logprobs(request)
        grammar = await constrained(gateway, exchange, request)
        if tools is not None:
            grammar = call_grammar(request, tools.dialect) or grammar
        plans = plan_choices(
            request,
            [prompt],
            prompt_param="messages",
            limit=chat_limit(request),
            logprobs=logprobs,
            prompt_logprobs=request.prompt_logprobs,
            grammar=grammar,
            model=gateway.model,
            info=info,
        )
        reply = ChatReply(reply_options(gateway, request, "chatcmpl", name, logprobs))
        return await exchange.answer(job_for(gateway, request, plans, reply, tools))


def _tools(gateway: Gateway, request: ChatRequest) -> ToolOptions | None:
    """Return how tools are called, if any may be. Raises ApiError 400 where nobody knows."""
    if not request.tools or request.tool_choice == "none":
        return None
    dialect = gateway.model.tool_dialect
    if dialect is None:
        message = "the model calls tools in a form that is not known here; see tool_dialect"
        raise invalid("tools", message, "unsupported_model")
    return ToolOptions(dialect, request.parallel_tool_calls)


def _logprobs(request: ChatRequest) -> int | None:
    """Return how many alternatives to report: 0 is the chosen token alone, None nothing."""
    return (request.top_logprobs or 0) if request.logprobs else None


def _chat_options(
    request: ChatRequest, tools: ToolOptions | None, max_model_len: int
) -> ChatOptions:
    generation_prompt = request.add_generation_prompt
    if generation_prompt is None:
        generation_prompt = not request.continue_final_message
    return ChatOptions(
        add_generation_prompt=generation_prompt,
        continue_final_message=request.continue_final_message,
        tools=[tool.for_template() for tool in request.tools] if tools and request.tools else None,
        template_variables=request.chat_template_kwargs,
        encoding=EncodingOptions(
            request.add_special_tokens, kept_tokens(request, chat_limit(request), max_model_len)
        ),
    )
