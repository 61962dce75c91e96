"""Every message survives encoding; nonsense is named; the generated code is that of the .proto."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from dualpace.core.request import FinishReason, Request
from dualpace.ipc import codec
from dualpace.ipc.proto import engine_pb2 as pb
from tests.unit.ipc.requests import COUNT, FLOAT32, ID, REQUEST, TOKENS

REPOSITORY = Path(__file__).parents[3]
LOGPROBS = st.builds(
    TokenLogprobs,
    FLOAT32,
    st.lists(st.tuples(COUNT, FLOAT32), max_size=5).map(tuple),
    st.none() | COUNT,
)
GATEWAY = st.just(77)
EVENT = st.one_of(
    st.builds(
        TokenEvent, GATEWAY, ID, COUNT, COUNT, st.none() | LOGPROBS, st.booleans(), st.booleans()
    ),
    st.builds(FinishEvent, GATEWAY, ID, COUNT, st.sampled_from(FinishReason), st.text()),
    st.builds(PromptLogprobs, GATEWAY, ID, COUNT, st.lists(LOGPROBS, max_size=5).map(tuple)),
    st.builds(StartEvent, GATEWAY, ID, st.floats(0, 1e6)),
    st.builds(Ownership, GATEWAY, ID, st.booleans(), COUNT),
)
WORD = st.one_of(
    st.builds(Cancel, ID),
    st.builds(Live, GATEWAY, st.lists(ID, max_size=5).map(tuple)),
    st.builds(Ask, GATEWAY, ID, COUNT, ID, COUNT),
)
COMMAND = st.one_of(
    st.builds(Reserve, ID, COUNT, st.text()),
    st.builds(Commit, REQUEST, COUNT, st.none() | COUNT),
    st.builds(Recall, ID),
    st.builds(Release, ID),
    st.just(Begin()),
    st.builds(Cancel, ID),
)
HANDOFF_EVENT = st.one_of(
    st.builds(Reserved, ID, COUNT, TOKENS),
    st.builds(Refused, ID, st.text()),
    st.builds(Returned, ID, st.sampled_from(ReturnCause), COUNT, TOKENS, TOKENS),
    st.builds(Finished, ID),
    st.builds(HostStatus, COUNT, COUNT, COUNT, COUNT),
)


@given(REQUEST, st.data())
def test_submissions_survive(request: Request, data: st.DataObject) -> None:
    n = request.prompt_tokens
    prompt = tuple(data.draw(st.lists(COUNT, min_size=min(n, 3), max_size=3))) * n
    fewer = min(3, request.max_tokens - 1)
    generated = tuple(data.draw(st.lists(COUNT, max_size=fewer)))
    submit = Submit(request, prompt[:n], generated)
    wire = codec.encode_gateway_message(submit).SerializeToString()
    assert codec.decode_gateway_message(pb.GatewayMessage.FromString(wire), 77) == submit


@given(WORD)
def test_a_gateways_words_survive(word: GatewayWord) -> None:
    wire = codec.encode_gateway_message(word).SerializeToString()
    assert codec.decode_gateway_message(pb.GatewayMessage.FromString(wire), 77) == word


@given(st.lists(EVENT, max_size=10))
def test_events_survive_in_order(events: list[EngineEvent]) -> None:
    wire = codec.encode_events(events).SerializeToString()
    assert codec.decode_events(pb.EngineMessage.FromString(wire), 77) == events


@given(st.lists(COMMAND, max_size=10))
def test_commands_survive_in_order(commands: list[HandoffCommand]) -> None:
    wire = codec.encode_commands(commands).SerializeToString()
    assert codec.decode_commands(pb.HandoffRequest.FromString(wire)) == commands


@given(st.lists(HANDOFF_EVENT, max_size=10))
def test_handoff_events_survive_in_order(events: list[HandoffEvent]) -> None:
    wire = codec.encode_handoff_events(events).SerializeToString()
    assert codec.decode_handoff_events(pb.HandoffReply.FromString(wire)) == events


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (pb.GatewayMessage(), "unexpected None"),
        (pb.GatewayMessage(hello=pb.GatewayHello()), "unexpected hello"),
        (pb.GatewayMessage(submit=pb.Submit()), "out of bounds"),
        (
            pb.GatewayMessage(
                submit=pb.Submit(
                    request=pb.Request(
                        prompt_tokens=3, max_tokens=1, sampling=pb.SamplingParams(top_p=1)
                    ),
                    prompt=[1],
                )
            ),
            "not the length of the prompt",
        ),
        (
            pb.GatewayMessage(
                submit=pb.Submit(
                    request=pb.Request(
                        prompt_tokens=1, max_tokens=2, sampling=pb.SamplingParams(top_p=1)
                    ),
                    prompt=[1],
                    generated=[2, 3],
                )
            ),
            "nothing left to generate",
        ),
        (
            pb.GatewayMessage(
                submit=pb.Submit(
                    request=pb.Request(
                        prompt_tokens=1,
                        max_tokens=1,
                        sampling=pb.SamplingParams(top_p=float("nan")),
                    ),
                    prompt=[1],
                )
            ),
            "out of bounds",
        ),
    ],
)
def test_nonsense_from_a_gateway_is_named(message: pb.GatewayMessage, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        codec.decode_gateway_message(message, 77)


def test_empty_handoff_messages_are_named() -> None:
    with pytest.raises(ProtocolError):
        codec.decode_commands(pb.HandoffRequest(commands=[pb.HandoffCommand()]))
    with pytest.raises(ProtocolError):
        codec.decode_handoff_events(pb.HandoffReply(events=[pb.HandoffEvent()]))


def test_an_empty_engine_event_is_named() -> None:
    with pytest.raises(ProtocolError):
        codec.decode_events(pb.EngineMessage(events=[pb.EngineEvent()]), 77)


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    source = Path("dualpace/ipc/proto/engine.proto")
    subprocess.run(
        [
            sys.executable,
            *("-m", "grpc_tools.protoc", f"-I{REPOSITORY / 'libs'}"),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"),
            str(REPOSITORY / "libs" / source),
        ],
        check=True,
    )
    for suffix in ("_pb2.py", "_pb2.pyi"):
        name = source.with_name(source.stem + suffix)
        fresh, committed = tmp_path / name, REPOSITORY / "libs" / name
        assert fresh.read_text() == committed.read_text(), "run `make proto`"
