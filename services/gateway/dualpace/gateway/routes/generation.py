"""What both generation routes do alike once a request is planned."""

from collections.abc import Sequence

from dualpace.gateway.choices import TextOptions, start_choices
from dualpace.gateway.planning import ChoicePlan
from dualpace.gateway.protocol.fields import GenerationRequest, StreamOptions
from dualpace.gateway.replies.common import Reply, ReplyOptions, new_id
from dualpace.gateway.serving import Gateway, Job


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
    gateway: Gateway, request: GenerationRequest, plans: Sequence[ChoicePlan], reply: Reply
) -> Job:
    """Return the request as a job."""
    # An end token of the model is no stop of the client's, even where the client lists it.
    model_ends = frozenset(() if request.ignore_eos else gateway.model.eos_token_ids)
    options = TextOptions(
        stop_strings=request.stop,
        client_stop_token_ids=frozenset(request.stop_token_ids) - model_ends,
        include_stop=request.include_stop_str_in_output,
        show_special=not request.skip_special_tokens,
        min_tokens=request.min_tokens,
    )
    return Job(
        choices=start_choices(plans, gateway.model.token_text, options),
        reply=reply,
        stream=request.stream,
        stream_options=request.stream_options or StreamOptions(),
    )
