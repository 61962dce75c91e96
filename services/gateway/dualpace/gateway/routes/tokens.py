"""POST /tokenize and /detokenize, as vLLM has them, and GET /load."""

from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from dualpace.gateway.errors import invalid, json_response, shorten
from dualpace.gateway.prompt_tokens import chat_tokens, completion_tokens
from dualpace.gateway.protocol.fields import Flag, StrictModel, TokenIdsField
from dualpace.gateway.protocol.validation import parse_chat, parse_completion, parse_model
from dualpace.gateway.serving import Exchange, Gateway


class TokenizeOptions(StrictModel):
    """What /tokenize knows beside the fields of a prompt or conversation."""

    return_token_strs: Flag = False


class DetokenizeRequest(StrictModel):
    """Tokens whose text is wanted."""

    model: str | None = None
    tokens: TokenIdsField = Field(min_length=1)


async def tokenize(gateway: Gateway, http_request: Request) -> Response:
    """Return the tokens of a prompt, or of a conversation as it would be generated from."""
    exchange = Exchange(gateway, http_request)
    with exchange.running():
        body = await exchange.body()
        options = parse_model(TokenizeOptions, body)
        if "messages" in body:
            work = chat_tokens(gateway, parse_chat(body))
        else:
            completion = parse_completion(body)
            if len(completion.prompt) != 1 or not isinstance(completion.prompt[0], str):
                raise invalid("prompt", "must be a string", "invalid_type")
            work = completion_tokens(gateway, completion)
        token_ids = await exchange.while_connected(work)
        answer: dict[str, Any] = {
            "count": len(token_ids),
            "max_model_len": gateway.lifecycle.node_info().max_model_len,
            "tokens": list(token_ids),
            "token_strs": None,
        }
        if options.return_token_strs:
            answer["token_strs"] = [gateway.model.token_text.label(i) for i in token_ids]
        return json_response(answer)


async def detokenize(gateway: Gateway, http_request: Request) -> Response:
    """Return the text of tokens, special ones included."""
    exchange = Exchange(gateway, http_request)
    with exchange.running():
        request = parse_model(DetokenizeRequest, await exchange.body())
        gateway.served_name(request.model)
        size = gateway.lifecycle.node_info().vocab_size
        for token_id in (min(request.tokens), max(request.tokens)):
            if not 0 <= token_id < size:
                raise invalid("tokens", f"{shorten(token_id, 40)} is not in 0..{size - 1}")
        decode = gateway.model.tokenizer.decode
        tokens = list(request.tokens)
        work = gateway.prompts.in_thread(lambda: decode(tokens, skip_special_tokens=False))
        return json_response({"prompt": await exchange.while_connected(work)})


def load(gateway: Gateway) -> Response:
    """Return how many requests are being worked on, in vLLM's form."""
    return json_response({"server_load": gateway.lifecycle.num_requests})
