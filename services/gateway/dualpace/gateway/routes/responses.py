"""POST /v1/responses, of which nothing is kept."""

from starlette.requests import Request
from starlette.responses import Response

from dualpace.gateway.preparing import Preparation, chat_logprobs
from dualpace.gateway.protocol.responses_as_chat import chat_body, in_own_words
from dualpace.gateway.protocol.validation import parse_chat, parse_responses
from dualpace.gateway.replies.responses import ResponsePresentation
from dualpace.gateway.routes.generation import reply_options
from dualpace.gateway.serving import Exchange, Gateway, Job


async def responses(gateway: Gateway, http_request: Request) -> Response:
    """Continue the conversation that a request brings with it."""
    exchange = Exchange(gateway, http_request)
    with exchange.running(), in_own_words():
        body = await exchange.body()
        request = parse_responses(body, strict=gateway.settings.strict_fields)
        chat = parse_chat(chat_body(request, body))
        exchange.name(request.request_id)
        urgency = exchange.urgency()
        name = gateway.served_name(request.model)
        [choice] = await Preparation(gateway, exchange.while_connected, urgency).chat(chat)
        options = reply_options(gateway, chat, "resp_", name, chat_logprobs(chat))
        presentation = ResponsePresentation(request, choice, options)
        return await exchange.answer(
            Job(choices=[choice], presentation=presentation, stream=request.stream, urgency=urgency)
        )
