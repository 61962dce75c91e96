"""The official client as judge of the dialect: what it parses, what it raises, what it retries."""

import openai
import pytest

from dualpace.core.request import FinishReason
from dualpace.gateway.text.model import ServedModel
from dualpace.testing.fake_backend import End, FakeBackend, Hold, Pause, always
from tests.unit.gateway.conftest import ANSWER, EOS, LiveServer, Serve, wait_until


def test_chat(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hi"}], logprobs=True, top_logprobs=1
    )
    [choice] = completion.choices
    assert choice.message.content == ANSWER
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert completion.usage is not None
    assert len(choice.logprobs.content) == completion.usage.completion_tokens


def test_chat_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts = ["", ""]
    usage = None
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        usage = chunk.usage or usage
    assert texts == [ANSWER, ANSWER]
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="demo", messages=[{"role": "user", "content": "Hi"}]
    ) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == ANSWER
    assert completion.choices[0].finish_reason == "stop"


def test_completions(client: openai.OpenAI, demo_model: ServedModel) -> None:
    completion = client.completions.create(
        model="demo", prompt=["a", "b"], max_tokens=100, logprobs=1, stop="漢", seed=-1
    )
    assert [choice.text for choice in completion.choices] == [ANSWER.partition("漢")[0]] * 2
    assert completion.choices[0].logprobs is not None
    stream = client.completions.create(model="demo", prompt="a", max_tokens=100, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == ANSWER


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo", "other-name"]
    assert client.models.retrieve("other-name").id == "other-name"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("org/none")
    assert caught.value.code == "model_not_found"


def test_errors_are_the_clients_own_kinds(client: openai.OpenAI, server: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="demo", prompt="x", temperature=9)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-x", prompt="x")
    assert unknown.value.code == "model_not_found"
    server.backend.unready = "the gpu-engine is not connected"
    with pytest.raises(openai.InternalServerError) as unready:
        client.completions.create(model="demo", prompt="x")
    assert unready.value.status_code == 503
    assert "gpu-engine" in unready.value.message


def test_an_error_amid_a_stream_is_raised(client: openai.OpenAI, server: LiveServer) -> None:
    server.backend.script = always(
        1000, Pause(0.02), End(FinishReason.ERROR, "The device is gone.")
    )
    stream = client.completions.create(model="demo", prompt="x", stream=True)
    with pytest.raises(openai.APIError, match="The device is gone") as caught:
        for _ in stream:
            pass
    assert caught.value.code == "generation_failed"


def test_comments_do_not_disturb_the_client(serve: Serve) -> None:
    server = serve(always(Pause(0.2), 1000, Pause(0.2), EOS), ping_interval_s=0.03)
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        stream = client.completions.create(model="demo", prompt="x", stream=True)
        assert [chunk.choices[0].finish_reason for chunk in stream] == [None, "stop"]


def test_closing_a_stream_ends_its_generation(client: openai.OpenAI, server: LiveServer) -> None:
    server.backend.script = always(1000, Hold())
    stream = client.completions.create(model="demo", prompt="x", stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: server.backend.generations[0].num_cancels == 1)


def test_the_client_waits_as_it_is_told_and_tries_again(serve: Serve) -> None:
    backend = FakeBackend(always(1000, EOS))
    server = serve(backend=backend)
    backend.unready = "an engine restarts"
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=1) as client:
        slept: list[float] = []

        def engine_is_back(seconds: float) -> None:
            slept.append(seconds)
            backend.unready = None

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("openai._base_client.time.sleep", engine_is_back)
            completion = client.completions.create(model="demo", prompt="x")
    assert completion.choices[0].finish_reason == "stop"
    assert slept == [2.0]
