"""POST /v1/completions."""

from starlette.requests import Request
from starlette.responses import Response

from dualpace.gateway.planning import (
    check_choice_count,
    completion_limit,
    kept_tokens,
    plan_choices,
)
from dualpace.gateway.prompts import EncodingOptions
from dualpace.gateway.protocol.completions import CompletionRequest
from dualpace.gateway.replies.completions import CompletionReply
from dualpace.gateway.routes.generation import constrained, job_for, reply_options
from dualpace.gateway.serving import Exchange, Gateway
from dualpace.gateway.validation import parse_completion


async def completions(gateway: Gateway, http_request: Request) -> Response:
    """Continue one prompt or several."""
    exchange = Exchange(gateway, http_request)
    with exchange.running():
        request = parse_completion(await exchange.body())
        exchange.name(request.request_id)
        name = gateway.served_name(request.model)
        check_choice_count(request, len(request.prompt), gateway.settings.max_choices)
        info = gateway.lifecycle.node_info()
        limit = completion_limit(request)
        encoding = EncodingOptions(
            request.add_special_tokens, kept_tokens(request, limit, info.max_model_len)
        )
        prompts = await exchange.while_connected(
            gateway.prompts.completions(request.prompt, info.max_model_len, encoding)
        )
        grammar = await constrained(gateway, exchange, request)
        plans = plan_choices(
            request,
            prompts,
            prompt_param="prompt",
            limit=limit,
            logprobs=request.logprobs,
            prompt_logprobs=_prompt_logprobs(request),
            grammar=grammar,
            model=gateway.model,
            info=info,
        )
        options = reply_options(gateway, request, "cmpl", name, request.logprobs)
        reply = CompletionReply(options, echo=request.echo)
        return await exchange.answer(job_for(gateway, request, plans, reply))


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    """Return how many alternatives the engines report for the prompt: `echo` shows them as well."""
    echoed = request.logprobs if request.echo else None
    return max((n for n in (request.prompt_logprobs, echoed) if n is not None), default=None)
