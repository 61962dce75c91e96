"""POST /v1/completions."""

from starlette.requests import Request
from starlette.responses import Response

from dualpace.gateway.planning import check_choice_count, completion_limit, plan_choices
from dualpace.gateway.replies.completions import CompletionReply
from dualpace.gateway.routes.generation import job_for, reply_options
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
        prompts = await exchange.while_connected(
            gateway.prompts.completions(request.prompt, info.max_model_len)
        )
        plans = plan_choices(
            request,
            prompts,
            prompt_param="prompt",
            limit=completion_limit(request),
            logprobs=request.logprobs,
            model=gateway.model,
            info=info,
        )
        options = reply_options(gateway, request, "cmpl", name, request.logprobs)
        reply = CompletionReply(options, echo=request.echo)
        return await exchange.answer(job_for(gateway, request, plans, reply))
