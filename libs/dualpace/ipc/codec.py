"""Between the plain values of `core.messages` and protobuf. Malformed input is a ProtocolError."""

from collections.abc import Iterable

from dualpace.core.errors import ProtocolError
from dualpace.core.messages import (
    Ask,
    Begin,
    Cancel,
    Commit,
    EngineEvent,
    Finished,
    FinishEvent,
    GatewayWord,
    HandoffCommand,
    HandoffEvent,
    HostStatus,
    Live,
    Ownership,
    PromptLogprobs,
    Recall,
    Refused,
    Release,
    Reserve,
    Reserved,
    ReturnCause,
    Returned,
    StartEvent,
    Submit,
    TokenEvent,
    TokenLogprobs,
)
from dualpace.core.request import FinishReason, LogitAdjustments, Request, SamplingParams
from dualpace.core.trace_context import decode_trace_context
from dualpace.ipc.proto import engine_pb2 as pb

PROTOCOL = 3
"""Version of the conversations; both sides say theirs, and unequal ones part at once."""


def encode_request(request: Request) -> pb.Request:
    """Encode a request."""
    sampling = request.sampling
    return pb.Request(
        request_id=request.request_id,
        gateway_id=request.gateway_id,
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        stop_token_ids=request.stop_token_ids,
        sampling=pb.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            logprobs=sampling.logprobs,
            adjustments=_encode_adjustments(sampling.adjustments),
        ),
        arrival_s=request.arrival_s,
        priority=request.priority,
        prompt_logprobs=request.prompt_logprobs,
        trace=None if request.trace is None else request.trace.encoded(),
        first_token_target_s=request.first_token_target_s,
        token_target_s=request.token_target_s,
    )


def encoded_size(request: Request) -> int:
    """Return the bytes that a request takes in the arena."""
    return encode_request(request).ByteSize()


def decode_request(message: pb.Request) -> Request:
    """Decode a request."""
    sampling = message.sampling
    try:
        return Request(
            request_id=message.request_id,
            gateway_id=message.gateway_id,
            prompt_tokens=message.prompt_tokens,
            max_tokens=message.max_tokens,
            stop_token_ids=tuple(message.stop_token_ids),
            sampling=SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                seed=sampling.seed,
                logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
                adjustments=(
                    _decode_adjustments(sampling.adjustments)
                    if sampling.HasField("adjustments")
                    else None
                ),
            ),
            arrival_s=message.arrival_s,
            priority=message.priority,
            prompt_logprobs=(
                message.prompt_logprobs if message.HasField("prompt_logprobs") else None
            ),
            trace=decode_trace_context(message.trace),
            first_token_target_s=message.first_token_target_s,
            token_target_s=(message.token_target_s if message.HasField("token_target_s") else None),
        )
    except (AssertionError, ValueError) as error:
        raise ProtocolError("a request is out of bounds") from error


def _encode_adjustments(adjustments: LogitAdjustments | None) -> pb.LogitAdjustments | None:
    if adjustments is None:
        return None
    return pb.LogitAdjustments(
        presence_penalty=adjustments.presence_penalty,
        frequency_penalty=adjustments.frequency_penalty,
        repetition_penalty=adjustments.repetition_penalty,
        biased_token_ids=[token_id for token_id, _ in adjustments.logit_bias],
        biases=[bias for _, bias in adjustments.logit_bias],
        allowed_token_ids=adjustments.allowed_token_ids,
        min_tokens=adjustments.min_tokens,
        grammar=adjustments.grammar,
    )


def _decode_adjustments(message: pb.LogitAdjustments) -> LogitAdjustments:
    return LogitAdjustments(
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=tuple(zip(message.biased_token_ids, message.biases, strict=True)),
        allowed_token_ids=tuple(message.allowed_token_ids),
        min_tokens=message.min_tokens,
        grammar=message.grammar,
    )


def encode_gateway_message(message: GatewayWord) -> pb.GatewayMessage:
    """Encode what a gateway says after its hello."""
    if isinstance(message, Submit):
        submit = pb.Submit(
            request=encode_request(message.request),
            prompt=message.prompt,
            generated=message.generated,
        )
        return pb.GatewayMessage(submit=submit)
    if isinstance(message, Cancel):
        return pb.GatewayMessage(cancel=pb.Cancel(request_id=message.request_id))
    if isinstance(message, Live):
        return pb.GatewayMessage(live=pb.Live(request_ids=message.request_ids))
    ask = pb.Ask(
        request_id=message.request_id,
        next_position=message.next_position,
        device=message.device,
        serial=message.serial,
    )
    return pb.GatewayMessage(ask=ask)


def decode_gateway_message(message: pb.GatewayMessage, gateway_id: int) -> GatewayWord:
    """Decode what a gateway says after its hello."""
    body = message.WhichOneof("body")
    if body == "submit":
        return _decode_submit(message.submit)
    if body == "cancel":
        return Cancel(message.cancel.request_id)
    if body == "live":
        return Live(gateway_id, tuple(message.live.request_ids))
    if body == "ask":
        ask = message.ask
        return Ask(gateway_id, ask.request_id, ask.next_position, ask.device, ask.serial)
    raise ProtocolError(f"unexpected {body} from a gateway")


def _decode_submit(submit: pb.Submit) -> Submit:
    request = decode_request(submit.request)
    prompt, generated = tuple(submit.prompt), tuple(submit.generated)
    if len(prompt) != request.prompt_tokens:
        raise ProtocolError("prompt_tokens is not the length of the prompt")
    if len(generated) >= request.max_tokens:
        raise ProtocolError("a request with all its tokens has nothing left to generate")
    return Submit(request, prompt, generated)


def encode_events(events: Iterable[EngineEvent]) -> pb.EngineMessage:
    """Encode a batch of tokens and ends."""
    message = pb.EngineMessage()
    for event in events:
        out = message.events.add()
        if isinstance(event, TokenEvent):
            out.token.request_id = event.request_id
            out.token.position = event.position
            out.token.token_id = event.token_id
            out.token.repeat = event.repeat
            out.token.assisted = event.assisted
            if event.logprobs is not None:
                _encode_logprobs(event.logprobs, out.token.logprobs)
        elif isinstance(event, FinishEvent):
            out.finish.request_id = event.request_id
            out.finish.end_position = event.end_position
            out.finish.reason = event.reason
            out.finish.message = event.message
        elif isinstance(event, StartEvent):
            out.start.request_id = event.request_id
            out.start.waited_s = event.waited_s
        elif isinstance(event, Ownership):
            out.ownership.request_id = event.request_id
            out.ownership.owned = event.owned
            out.ownership.serial = event.serial
        else:
            out.prompt_logprobs.request_id = event.request_id
            out.prompt_logprobs.start = event.start
            for logprobs in event.tokens:
                _encode_logprobs(logprobs, out.prompt_logprobs.tokens.add())
    return message


def _encode_logprobs(logprobs: TokenLogprobs, out: pb.TokenLogprobs) -> None:
    out.chosen = logprobs.chosen
    for token_id, logprob in logprobs.top:
        out.top.add(token_id=token_id, logprob=logprob)
    if logprobs.rank is not None:
        out.rank = logprobs.rank


def _decode_logprobs(message: pb.TokenLogprobs) -> TokenLogprobs:
    top = tuple((t.token_id, t.logprob) for t in message.top)
    return TokenLogprobs(message.chosen, top, message.rank if message.HasField("rank") else None)


def decode_events(message: pb.EngineMessage, gateway_id: int) -> list[EngineEvent]:
    """Decode a batch of tokens and ends."""
    return [_decode_event(event, gateway_id) for event in message.events]


def _decode_event(event: pb.EngineEvent, gateway_id: int) -> EngineEvent:
    body = event.WhichOneof("body")
    if body == "token":
        token = event.token
        logprobs = _decode_logprobs(token.logprobs) if token.HasField("logprobs") else None
        return TokenEvent(
            gateway_id,
            token.request_id,
            token.position,
            token.token_id,
            logprobs,
            token.repeat,
            token.assisted,
        )
    if body == "finish":
        end = event.finish
        reason = FinishReason(end.reason)
        return FinishEvent(gateway_id, end.request_id, end.end_position, reason, end.message)
    if body == "start":
        return StartEvent(gateway_id, event.start.request_id, event.start.waited_s)
    if body == "prompt_logprobs":
        prompt = event.prompt_logprobs
        tokens = tuple(map(_decode_logprobs, prompt.tokens))
        return PromptLogprobs(gateway_id, prompt.request_id, prompt.start, tokens)
    if body == "ownership":
        said = event.ownership
        return Ownership(gateway_id, said.request_id, said.owned, said.serial)
    raise ProtocolError("an empty event from an engine")


def encode_commands(commands: Iterable[HandoffCommand]) -> pb.HandoffRequest:
    """Encode a batch of the gpu-engine's commands."""
    message = pb.HandoffRequest()
    for command in commands:
        out = message.commands.add()
        if isinstance(command, Reserve):
            out.reserve.request_id = command.request_id
            out.reserve.num_tokens = command.num_tokens
            out.reserve.grammar = command.grammar
        elif isinstance(command, Commit):
            out.commit.request.CopyFrom(encode_request(command.request))
            out.commit.num_tokens = command.num_tokens
            if command.return_at is not None:
                out.commit.return_at = command.return_at
        elif isinstance(command, Recall):
            out.recall.request_id = command.request_id
        elif isinstance(command, Release):
            out.release.request_id = command.request_id
        elif isinstance(command, Begin):
            out.begin.SetInParent()
        else:
            out.cancel.request_id = command.request_id
    return message


def decode_commands(message: pb.HandoffRequest) -> list[HandoffCommand]:
    """Decode a batch of the gpu-engine's commands."""
    return [_decode_command(command) for command in message.commands]


def _decode_command(command: pb.HandoffCommand) -> HandoffCommand:
    body = command.WhichOneof("body")
    if body == "reserve":
        reserve = command.reserve
        return Reserve(reserve.request_id, reserve.num_tokens, reserve.grammar)
    if body == "commit":
        commit = command.commit
        return_at = commit.return_at if commit.HasField("return_at") else None
        return Commit(decode_request(commit.request), commit.num_tokens, return_at)
    if body == "recall":
        return Recall(command.recall.request_id)
    if body == "release":
        return Release(command.release.request_id)
    if body == "cancel":
        return Cancel(command.cancel.request_id)
    if body == "begin":
        return Begin()
    raise ProtocolError("an empty handoff command")


def encode_handoff_events(events: Iterable[HandoffEvent]) -> pb.HandoffReply:
    """Encode a batch of the cpu-engine's answers."""
    message = pb.HandoffReply()
    for event in events:
        out = message.events.add()
        if isinstance(event, Reserved):
            out.reserved.CopyFrom(
                pb.Reserved(request_id=event.request_id, slot=event.slot, blocks=event.blocks)
            )
        elif isinstance(event, Refused):
            out.refused.CopyFrom(pb.Refused(request_id=event.request_id, reason=event.reason))
        elif isinstance(event, Returned):
            out.returned.CopyFrom(
                pb.Returned(
                    request_id=event.request_id,
                    cause=event.cause,
                    num_tokens=event.num_tokens,
                    tokens=event.tokens,
                    blocks=event.blocks,
                )
            )
        elif isinstance(event, Finished):
            out.finished.request_id = event.request_id
        else:
            out.status.CopyFrom(
                pb.HostStatus(
                    total_blocks=event.total_blocks,
                    free_blocks=event.free_blocks,
                    free_slots=event.free_slots,
                    running=event.running,
                )
            )
    return message


def decode_handoff_events(message: pb.HandoffReply) -> list[HandoffEvent]:
    """Decode a batch of the cpu-engine's answers."""
    return [_decode_handoff_event(event) for event in message.events]


def _decode_handoff_event(event: pb.HandoffEvent) -> HandoffEvent:
    body = event.WhichOneof("body")
    if body == "reserved":
        reserved = event.reserved
        return Reserved(reserved.request_id, reserved.slot, tuple(reserved.blocks))
    if body == "refused":
        return Refused(event.refused.request_id, event.refused.reason)
    if body == "returned":
        returned = event.returned
        return Returned(
            returned.request_id,
            ReturnCause(returned.cause),
            returned.num_tokens,
            tuple(returned.tokens),
            tuple(returned.blocks),
        )
    if body == "finished":
        return Finished(event.finished.request_id)
    if body == "status":
        status = event.status
        return HostStatus(
            status.total_blocks, status.free_blocks, status.free_slots, status.running
        )
    raise ProtocolError("an empty handoff event")
