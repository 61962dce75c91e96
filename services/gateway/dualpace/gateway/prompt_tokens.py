"""The tokens of a prompt, and nothing generated: for /tokenize and its like."""

from dualpace.gateway.preparing import chat_options
from dualpace.gateway.protocol.chat import ChatRequest
from dualpace.gateway.protocol.completions import CompletionRequest
from dualpace.gateway.serving import Gateway
from dualpace.gateway.text.prompts import EncodingOptions


async def chat_tokens(gateway: Gateway, request: ChatRequest) -> tuple[int, ...]:
    """Return the tokens of a conversation as it would be generated from. Raises ApiError."""
    gateway.served_name(request.model)
    max_model_len = gateway.lifecycle.node_info().max_model_len
    with_tools = bool(request.tools) and request.tool_choice != "none"
    options = chat_options(request, max_model_len, gateway.model.template, with_tools=with_tools)
    prompt = await gateway.prompts.chat(request.messages, max_model_len, options)
    return prompt.token_ids


async def completion_tokens(gateway: Gateway, request: CompletionRequest) -> tuple[int, ...]:
    """Return the tokens of the first prompt. Raises ApiError."""
    gateway.served_name(request.model)
    max_model_len = gateway.lifecycle.node_info().max_model_len
    options = EncodingOptions(request.add_special_tokens)
    [prompt] = await gateway.prompts.completions(request.prompt[:1], max_model_len, options)
    return prompt.token_ids
