"""What all generation routes do alike once a request is prepared."""

from collections.abc import Sequence

from dualpace.gateway.choices import Choice
from dualpace.gateway.limits.urgency import Urgency
from dualpace.gateway.protocol.generation import GenerationRequest, StreamOptions
from dualpace.gateway.replies.chunks import Chunks
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
    request: GenerationRequest, choices: Sequence[Choice], reply: Reply, urgency: Urgency
) -> Job:
    """Return the request as a job."""
    presentation = Chunks(choices, reply, request.stream_options or StreamOptions())
    return Job(
        choices=list(choices), presentation=presentation, stream=request.stream, urgency=urgency
    )
