"""POST /v1/chat/completions."""

from starlette.requests import Request
from starlette.responses import Response

from dualpace.gateway.preparing import Preparation, chat_logprobs
from dualpace.gateway.protocol.validation import parse_chat
from dualpace.gateway.replies.chat import ChatReply
from dualpace.gateway.routes.generation import job_for, reply_options
from dualpace.gateway.serving import Exchange, Gateway


async def chat_completions(gateway: Gateway, http_request: Request) -> Response:
    """Continue a conversation."""
    exchange = Exchange(gateway, http_request)
    with exchange.running():
        body = await exchange.body()
        request = parse_chat(body, strict=gateway.settings.strict_fields)
        exchange.name(request.request_id)
        urgency = exchange.urgency()
        name = gateway.served_name(request.model)
        choices = await Preparation(gateway, exchange.while_connected, urgency).chat(request)
        options = reply_options(gateway, request, "chatcmpl-", name, chat_logprobs(request))
        return await exchange.answer(job_for(request, choices, ChatReply(options), urgency))
