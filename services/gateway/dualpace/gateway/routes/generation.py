"""What both generation routes do alike once a request is planned."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualpace.gateway.choices import TextOptions, start_choices
from dualpace.gateway.output_grammar import OutputGrammar, output_grammar
from dualpace.gateway.planning import ChoicePlan
from dualpace.gateway.protocol.generation import GenerationRequest, StreamOptions
from dualpace.gateway.replies.common import Reply, ReplyOptions, new_id
from dualpace.gateway.serving import Exchange, Gateway, Job
from dualpace.gateway.tools.dialect import Dialect


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """How the model calls tools in a request that has some."""

    dialect: Dialect
    parallel: bool


async def constrained(
    gateway: Gateway, exchange: Exchange, request: GenerationRequest
) -> OutputGrammar | None:
    """Return the grammar that the text must follow, written in a thread. Raises ApiError 400."""
    if request.structured_outputs is None and request.response_format is None:
        return None
    return await exchange.while_connected(
        gateway.prompts.in_thread(lambda: output_grammar(request))
    )


def reply_options(
    gateway: Gateway, request: GenerationRequest, prefix: str, name: str, logprobs: int | None
) -> ReplyOptions:
    """Return what the answer shows, under a fresh id."""
    return ReplyOptions(
        reply_id=new_id(prefix),
        model=name,
        token_text=gateway.model.token_text,
        logprobs=logprobs,
        return_token_ids=request.return_token_ids,
        tokens_as_ids=request.return_tokens_as_token_ids,
        prompt_logprobs=request.prompt_logprobs,
        x_dualpace=request.x_dualpace,
    )


def job_for(
    gateway: Gateway,
    request: GenerationRequest,
    plans: Sequence[ChoicePlan],
    reply: Reply,
    tools: ToolOptions | None = None,
) -> Job:
    """Return the request as a job; with `tools`, calls are read out of its text."""
    # An end token of the model is no stop of the client's, even where the client lists it.
    model_ends = frozenset(() if request.ignore_eos else gateway.model.eos_token_ids)
    options = TextOptions(
        stop_strings=request.stop,
        client_stop_token_ids=frozenset(request.stop_token_ids) - model_ends,
        include_stop=request.include_stop_str_in_output,
        show_special=not request.skip_special_tokens,
        min_tokens=request.min_tokens,
        visible_ids=_ids(gateway, tools.dialect.tags) if tools else frozenset(),
        call_parser=tools.dialect.parser if tools else None,
        max_calls=1 if tools and not tools.parallel else None,
    )
    return Job(
        choices=start_choices(plans, gateway.model.token_text, options),
        reply=reply,
        stream=request.stream,
        stream_options=request.stream_options or StreamOptions(),
    )


def _ids(gateway: Gateway, tags: Sequence[str]) -> frozenset[int]:
    ids = (gateway.model.tokenizer.token_to_id(tag) for tag in tags)
    return frozenset(token_id for token_id in ids if token_id is not None)
