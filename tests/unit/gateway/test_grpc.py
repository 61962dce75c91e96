"""The gRPC front, by its own client: the same meaning as HTTP, and errors that say as much."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from dualpace.api import ApiFailedError, AsyncClient, Client, methods
from dualpace.api.v1 import inference_pb2 as pb
from dualpace.core.request import FinishReason
from dualpace.gateway.grpc.front import grpc_server
from dualpace.gateway.text.model import ServedModel
from dualpace.testing.fake_backend import Break, End, Hold, always
from tests.unit.gateway.conftest import CORPUS, LiveServer, Serve, ids_of, wait_until

EOS = 2
ANSWER = CORPUS[14]
ServeGrpc = Callable[..., tuple[LiveServer, str]]


@contextmanager
def grpc_port(server: LiveServer) -> Iterator[str]:
    """Serve gRPC on the loop of an HTTP server."""
    context = grpc_server(server.gateway)
    port = server.call(context.__aenter__)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.call(lambda: context.__aexit__(None, None, None))


@pytest.fixture
def client_for(serve: Serve) -> Iterator[Callable[..., Client]]:
    """Return a client of a node that follows a script."""
    opened: list[Any] = []

    def make(*steps: Any, key: str | None = None, **settings: Any) -> Client:
        server = serve(always(*steps), grpc_port=0, **settings)
        context = grpc_port(server)
        client = Client(context.__enter__(), key=key, timeout_s=20)
        client.server = server  # type: ignore[attr-defined]
        opened.append((client, context))
        return client

    yield make
    for client, context in reversed(opened):
        client.close()
        context.__exit__(None, None, None)


def user(content: str) -> pb.Conversation:
    return pb.Conversation(messages=[pb.Message(role="user", content=content)])


def test_text_tokens_and_usage(client_for: Callable[..., Client], demo_model: ServedModel) -> None:
    ids = ids_of(demo_model, ANSWER)
    client = client_for(*ids, EOS)
    for request in (
        pb.GenerateRequest(text="Hi", max_tokens=500, logprobs=1),
        pb.GenerateRequest(conversation=user("Hi"), logprobs=1),
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6, 7]), max_tokens=500, logprobs=1),
    ):
        parts = list(client.generate(request))
        assert "".join(part.text for part in parts) == ANSWER
        tokens = [token for part in parts for token in part.tokens]
        assert [token.id for token in tokens] == [*ids, EOS]
        assert all(token.logprob == -0.5 and len(token.top) == 1 for token in tokens)
        assert [part.finish_reason for part in parts][-1] == "stop"
        assert not any(part.HasField("finish_reason") for part in parts[:-1])
        assert parts[-1].usage.completion_tokens == len(ids) + 1
        assert parts[-1].usage.prompt_tokens > 0


def test_everything_a_request_can_say_arrives(client_for: Callable[..., Client]) -> None:
    client = client_for(1000, 1001, 1002, EOS)
    request = pb.GenerateRequest(
        model="demo",
        text="Hi",
        sampling=pb.Sampling(
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.1,
            seed=-3,
            presence_penalty=0.5,
            frequency_penalty=0.25,
            repetition_penalty=1.5,
            logit_bias={9: 1.5},
            allowed_token_ids=[1000, 1001, 1002],
        ),
        max_tokens=50,
        min_tokens=2,
        n=2,
        stop_token_ids=[1001],
        ignore_eos=True,
        priority=-4,
        form=pb.OutputForm(regex="a*"),
    )
    parts = list(client.generate(request))
    assert {part.index for part in parts} == {0, 1}
    assert [p.stop_token_id for p in parts if p.finish_reason] == [1001, 1001]
    params = client.server.backend.generations[0].params  # type: ignore[attr-defined]
    sampling, adjustments = params.sampling, params.sampling.adjustments
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert sampling.seed == (1 << 64) - 3
    assert adjustments.presence_penalty == 0.5
    assert adjustments.logit_bias == ((9, 1.5),)
    assert "a*" in adjustments.grammar
    assert (params.priority, params.max_tokens, params.stop_token_ids) == (-4, 50, (1001,))


def test_tools(client_for: Callable[..., Client], demo_model: ServedModel) -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    client = client_for(*ids_of(demo_model, text), EOS)
    tool = pb.Tool(name="weather", parameters_json='{"type": "object"}')
    request = pb.GenerateRequest(
        conversation=user("Hi"), tools=[tool], tool_choice="function:weather"
    )
    parts = list(client.generate(request))
    assert parts[-1].finish_reason == "tool_calls"
    [call] = [call for part in parts for call in part.tool_calls]
    assert json.loads(call.arguments_json) == {"city": "Oslo"}
    history = user("Hi")
    history.messages.add(role="assistant", tool_calls=[call])
    history.messages.add(role="tool", tool_call_id=call.id, content="sunny")
    assert client.tokenize(pb.TokenizeRequest(conversation=history)).token_ids


@pytest.mark.parametrize(
    ("request_", "param", "code"),
    [
        (pb.GenerateRequest(), "prompt", "invalid_value"),
        (pb.GenerateRequest(text="x", sampling=pb.Sampling(top_p=2)), "top_p", "invalid_value"),
        (pb.GenerateRequest(text="x", max_tokens=10**6), "max_tokens", "context_length_exceeded"),
        (pb.GenerateRequest(text="x", tools=[pb.Tool(name="f")]), "tools", "invalid_value"),
        (pb.GenerateRequest(conversation=user("x"), tool_choice="any"), "tool_choice", None),
        (pb.GenerateRequest(conversation=pb.Conversation()), "messages", "invalid_value"),
        (
            pb.GenerateRequest(text="x", form=pb.OutputForm(json_schema="{")),
            "structured_outputs",
            "invalid_value",
        ),
    ],
)
def test_faults_are_named(
    client_for: Callable[..., Client], request_: pb.GenerateRequest, param: str, code: str | None
) -> None:
    client = client_for(1000, EOS)
    with pytest.raises(ApiFailedError, match=param) as caught:
        list(client.generate(request_))
    assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.param == param
    assert code is None or caught.value.code == code


def test_failures_have_statuses_of_their_own(client_for: Callable[..., Client]) -> None:
    with pytest.raises(ApiFailedError) as caught:
        list(client_for(EOS).generate(pb.GenerateRequest(model="other", text="x")))
    assert caught.value.status is grpc.StatusCode.NOT_FOUND
    broken = client_for(1000, End(FinishReason.ERROR, "gone"))
    with pytest.raises(ApiFailedError, match="gone") as caught:
        list(broken.generate(pb.GenerateRequest(text="x")))
    assert caught.value.status is grpc.StatusCode.INTERNAL
    with pytest.raises(ApiFailedError) as caught:
        list(client_for(Break(RuntimeError("secret"))).generate(pb.GenerateRequest(text="x")))
    assert "secret" not in str(caught.value)
    slow = client_for(Hold(), EOS, first_token_timeout_s=0.1)
    with pytest.raises(ApiFailedError) as caught:
        list(slow.generate(pb.GenerateRequest(text="x")))
    assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED


def test_keys_and_limits_are_those_of_http(
    client_for: Callable[..., Client], tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"keys": [{"name": "a", "key": "k", "requests_per_minute": 1}]}')
    request = pb.GenerateRequest(text="x")
    stranger = client_for(1000, EOS, api_keys_file=str(path))
    for ask in (lambda: list(stranger.generate(request)), stranger.model_info):
        with pytest.raises(ApiFailedError) as caught:
            ask()
        assert caught.value.status is grpc.StatusCode.UNAUTHENTICATED
    known = client_for(1000, EOS, api_keys_file=str(path), key="k")
    list(known.generate(request))
    with pytest.raises(ApiFailedError) as caught:
        list(known.generate(request))
    assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.retry_after_s == pytest.approx(60, abs=2)


@pytest.mark.parametrize("after", [0, 1])
def test_a_client_that_leaves_ends_its_generations(
    client_for: Callable[..., Client], after: int
) -> None:
    client = client_for(*[1000] * after, Hold(), EOS)
    server: LiveServer = client.server  # type: ignore[attr-defined]
    parts = client.generate(pb.GenerateRequest(text="x"))
    if after:
        next(parts)
        parts.close()  # type: ignore[attr-defined]
    else:

        def wait() -> None:
            with pytest.raises(ApiFailedError):
                list(parts)

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: bool(server.backend.generations))
        client.close()
        waiting.join(10)
    wait_until(lambda: server.backend.generations[0].num_cancels > 0)


async def use(address: str) -> tuple[str, pb.ModelInfoResponse, int]:
    async with AsyncClient(address, timeout_s=20) as client:
        parts = [part async for part in client.generate(pb.GenerateRequest(text="Hi"))]
        info = await client.model_info()
        tokens = await client.tokenize(pb.TokenizeRequest(text="Hi there"))
        with pytest.raises(ApiFailedError):
            await client.tokenize(pb.TokenizeRequest(text="Hi", model="other"))
    return "".join(part.text for part in parts), info, len(tokens.token_ids)


def test_the_asynchronous_client(serve: Serve, demo_model: ServedModel) -> None:
    server = serve(always(*ids_of(demo_model, "Hello"), EOS), grpc_port=0)
    with grpc_port(server) as address:
        text, info, count = asyncio.run(use(address))
    assert text == "Hello"
    assert list(info.names) == list(demo_model.names)
    assert info.max_model_len == 2048
    assert count == len(ids_of(demo_model, "Hi there"))


def test_health_and_reflection(serve: Serve) -> None:
    server = serve(always(EOS), grpc_port=0)
    with grpc_port(server) as address, grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)

        def status(service: str) -> str:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

        assert status("") == status("readiness") == status(methods.SERVICE) == "SERVING"
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=20)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.backend.unready = "the device is on fire"
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        assert status("readiness") == "NOT_SERVING"
        assert status("liveness") == "SERVING"
        with pytest.raises(grpc.RpcError) as caught:
            status("nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        database = ProtoReflectionDescriptorDatabase(channel)
        assert methods.SERVICE in database.get_services()
        found = DescriptorPool(database).FindServiceByName(methods.SERVICE)
        assert {m.name for m in found.methods} == {"Generate", "Tokenize", "ModelInfo"}
