"""POST /v1/completions."""

from starlette.requests import Request
from starlette.responses import Response

from dualpace.gateway.preparing import Preparation
from dualpace.gateway.protocol.validation import parse_completion
from dualpace.gateway.replies.completions import CompletionReply
from dualpace.gateway.routes.generation import job_for, reply_options
from dualpace.gateway.serving import Exchange, Gateway


async def completions(gateway: Gateway, http_request: Request) -> Response:
    """Continue prompts."""
    exchange = Exchange(gateway, http_request)
    with exchange.running():
        body = await exchange.body()
        request = parse_completion(body, strict=gateway.settings.strict_fields)
        exchange.name(request.request_id)
        urgency = exchange.urgency()
        name = gateway.served_name(request.model)
        choices = await Preparation(gateway, exchange.while_connected, urgency).completion(request)
        options = reply_options(gateway, request, "cmpl-", name, request.logprobs)
        reply = CompletionReply(options, echo=request.echo)
        return await exchange.answer(job_for(request, choices, reply, urgency))
