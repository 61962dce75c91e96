"""Between the plain values of `core.messages` and protobuf. Malformed input is a ProtocolError."""

from collections.abc import Iterable

from dualpace.core.errors import ProtocolError
from dualpace.core.messages import (
    Cancel,
    Commit,
    EngineEvent,
    Finished,
    FinishEvent,
    HandoffCommand,
    HandoffEvent,
    HostStatus,
    Recall,
    Refused,
    Release,
    Reserve,
    Reserved,
    ReturnCause,
    Returned,
    Submit,
    TokenEvent,
    TokenLogprobs,
)
from dualpace.core.request import FinishReason, Request, SamplingParams
from dualpace.ipc.proto import engine_pb2 as pb

PROTOCOL = 1
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
        ),
        arrival_s=request.arrival_s,
    )


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
            ),
            arrival_s=message.arrival_s,
        )
    except AssertionError as error:
        raise ProtocolError("a request is out of bounds") from error


def encode_submit(submit: Submit) -> pb.GatewayMessage:
    """Encode a submission."""
    body = pb.Submit(request=encode_request(submit.request), prompt=submit.prompt)
    return pb.GatewayMessage(submit=body)


def encode_cancel(cancel: Cancel) -> pb.GatewayMessage:
    """Encode a gateway's cancellation."""
    return pb.GatewayMessage(cancel=pb.Cancel(request_id=cancel.request_id))


def decode_gateway_message(message: pb.GatewayMessage) -> Submit | Cancel:
    """Decode what a gateway says after its hello."""
    body = message.WhichOneof("body")
    if body == "submit":
        request = decode_request(message.submit.request)
        prompt = tuple(message.submit.prompt)
        if len(prompt) != request.prompt_tokens:
            raise ProtocolError("prompt_tokens is not the length of the prompt")
        return Submit(request, prompt)
    if body == "cancel":
        return Cancel(message.cancel.request_id)
    raise ProtocolError(f"unexpected {body} from a gateway")


def encode_events(events: Iterable[EngineEvent]) -> pb.EngineMessage:
    """Encode a batch of tokens and ends."""
    message = pb.EngineMessage()
    for event in events:
        if isinstance(event, FinishEvent):
            message.events.add().finish.CopyFrom(
                pb.FinishEvent(
                    request_id=event.request_id,
                    end_position=event.end_position,
                    reason=event.reason,
                    message=event.message,
                )
            )
            continue
        token = message.events.add().token
        token.request_id = event.request_id
        token.position = event.position
        token.token_id = event.token_id
        token.repeat = event.repeat
        if event.logprobs is not None:
            token.logprobs.chosen = event.logprobs.chosen
            for token_id, logprob in event.logprobs.top:
                token.logprobs.top.add(token_id=token_id, logprob=logprob)
    return message


def decode_events(message: pb.EngineMessage, gateway_id: int) -> list[EngineEvent]:
    """Decode a batch of tokens and ends."""
    events: list[EngineEvent] = []
    for event in message.events:
        if event.WhichOneof("body") == "token":
            token = event.token
            logprobs = None
            if token.HasField("logprobs"):
                top = tuple((t.token_id, t.logprob) for t in token.logprobs.top)
                logprobs = TokenLogprobs(token.logprobs.chosen, top)
            events.append(
                TokenEvent(
                    gateway_id,
                    token.request_id,
                    token.position,
                    token.token_id,
                    logprobs,
                    token.repeat,
                )
            )
        else:
            end = event.finish
            reason = FinishReason(end.reason)
            events.append(
                FinishEvent(gateway_id, end.request_id, end.end_position, reason, end.message)
            )
    return events


def encode_commands(commands: Iterable[HandoffCommand]) -> pb.HandoffRequest:
    """Encode a batch of the gpu-engine's commands."""
    message = pb.HandoffRequest()
    for command in commands:
        out = message.commands.add()
        if isinstance(command, Reserve):
            out.reserve.request_id = command.request_id
            out.reserve.num_tokens = command.num_tokens
        elif isinstance(command, Commit):
            out.commit.request.CopyFrom(encode_request(command.request))
            out.commit.num_tokens = command.num_tokens
            if command.return_at is not None:
                out.commit.return_at = command.return_at
        elif isinstance(command, Recall):
            out.recall.request_id = command.request_id
        elif isinstance(command, Release):
            out.release.request_id = command.request_id
        else:
            out.cancel.request_id = command.request_id
    return message


def decode_commands(message: pb.HandoffRequest) -> list[HandoffCommand]:
    """Decode a batch of the gpu-engine's commands."""
    return [_decode_command(command) for command in message.commands]


def _decode_command(command: pb.HandoffCommand) -> HandoffCommand:
    body = command.WhichOneof("body")
    if body == "reserve":
        return Reserve(command.reserve.request_id, command.reserve.num_tokens)
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
