"""POST /v1/chat/completions, whole and streamed."""

from dataclasses import replace
from typing import Any

import pytest

from dualpace.core.request import Engine
from dualpace.gateway.engines.backend import GenerationParams
from dualpace.gateway.text.chat_template import ChatTemplate
from dualpace.gateway.text.model import ServedModel, served_model
from dualpace.testing.fake_backend import Pause, Script, Start, Step, always
from tests.unit.gateway.conftest import CORPUS, LiveServer, Serve, chunks_of, ids_of

EOS = 2
ANSWER = CORPUS[16]
USAGE = {"include_usage": True}


@pytest.fixture
def answer(demo_model: ServedModel) -> Script:
    return always(*ids_of(demo_model, ANSWER), EOS)


def test_a_whole_answer(serve: Serve, demo_model: ServedModel, answer: Script) -> None:
    server = serve(answer)
    body = server.chat("Hi").json()
    [generation] = server.backend.generations
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "demo")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": ANSWER, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    prompt, answered = len(generation.prompt), len(ids_of(demo_model, ANSWER)) + 1
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
    }
    assert demo_model.tokenizer.decode(list(generation.prompt), skip_special_tokens=False).endswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_streamed_answer_is_the_whole_one_in_pieces(serve: Serve, answer: Script) -> None:
    server = serve(answer)
    response = server.chat("Hi", stream=True)
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    chunks = chunks_of(response)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all("usage" not in chunk for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["delta"]["content"] for c in choices[1:-1]].count("") == 0
    assert "".join(c["delta"].get("content", "") for c in choices) == ANSWER
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}


def test_usage_comes_once_in_a_chunk_of_its_own(serve: Serve, answer: Script) -> None:
    server = serve(answer)
    *chunks, last = chunks_of(server.chat("Hi", stream=True, stream_options=USAGE))
    assert last["choices"] == []
    assert last["usage"] == server.chat("Hi").json()["usage"]
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)


def test_continuous_usage_grows_to_the_whole(serve: Serve, answer: Script) -> None:
    server = serve(answer)
    options = {"continuous_usage_stats": True, "include_usage": True}
    chunks = chunks_of(server.chat("Hi", stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] == server.chat("Hi").json()["usage"]["completion_tokens"]


def by_seed(first: int) -> Script:
    """Choice i says token 1000 + i three times, at a pace of its own."""

    def script(_: tuple[int, ...], params: GenerationParams) -> list[Step]:
        index = params.sampling.seed - first
        steps: list[Step] = [Pause(0.002 * (index + 1)), 1000 + index] * 3
        return [*steps, EOS]

    return script


def test_choices_of_a_stream_are_interleaved_under_their_own_indices(
    serve: Serve, demo_model: ServedModel
) -> None:
    server = serve(by_seed(70))
    chunks = chunks_of(server.chat("Hi", n=4, seed=70, stream=True, stream_options=USAGE))
    for index in range(4):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        text = "".join(choice["delta"].get("content", "") for choice in mine)
        assert text == demo_model.tokenizer.decode([1000 + index] * 3)
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert mine[-1]["finish_reason"] == "stop"
    order = [c["index"] for chunk in chunks for c in chunk["choices"]]
    assert order != sorted(order)
    assert chunks[-1]["usage"]["completion_tokens"] == 4 * 4
    assert chunks[-1]["usage"]["prompt_tokens"] == len(server.backend.generations[0].prompt)


def test_choices_of_a_whole_answer_are_in_order(serve: Serve, demo_model: ServedModel) -> None:
    server = serve(by_seed(70))
    body = server.chat("Hi", n=3, seed=70).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    for index, choice in enumerate(body["choices"]):
        expected = demo_model.tokenizer.decode([1000 + index] * 3)
        assert choice["message"]["content"] == expected


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_tokens_ends_the_text_and_the_generation(
    serve: Serve, demo_model: ServedModel, stream: bool
) -> None:
    ids = ids_of(demo_model, "One. Two. STOPPING here, and further on for long.")
    server = serve(always(*ids, *[1000] * 500, EOS))
    response = server.chat("Hi", stop=["OPPIN", "never"], stream=stream)
    if stream:
        choices = [c for chunk in chunks_of(response) for c in chunk["choices"]]
        text = "".join(c["delta"].get("content", "") for c in choices)
        last = choices[-1]
    else:
        [last] = response.json()["choices"]
        text = last["message"]["content"]
    assert text == "One. Two. ST"
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "OPPIN")
    [generation] = server.backend.generations
    assert generation.num_cancels == 1


def test_a_limit_ends_with_length(serve: Serve, answer: Script) -> None:
    server = serve(answer)
    for fields in ({"max_tokens": 3}, {"max_tokens": 9, "max_completion_tokens": 3}):
        body = server.chat("Hi", **fields).json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 3


def test_without_a_limit_the_rest_of_the_context_is_free(serve: Serve) -> None:
    server = serve(always(*[1000] * 3000))
    body = server.chat("Hi").json()
    assert body["usage"]["total_tokens"] == server.backend.info.max_model_len
    assert body["choices"][0]["finish_reason"] == "length"


def test_end_tokens_are_ignored_on_demand(serve: Serve, demo_model: ServedModel) -> None:
    ids = ids_of(demo_model, "more")
    server = serve(always(EOS, *ids, EOS, *ids))
    [choice] = server.chat("Hi", ignore_eos=True, max_tokens=2 * len(ids) + 2).json()["choices"]
    assert choice["message"]["content"] == "moremore"
    assert choice["finish_reason"] == "length"


def test_a_clients_stop_token_is_named(serve: Serve, demo_model: ServedModel) -> None:
    first, *_, last = ids_of(demo_model, "One two three")
    server = serve(always(first, last, EOS))
    [choice] = server.chat("Hi", stop_token_ids=[last, EOS]).json()["choices"]
    assert choice["message"]["content"] == "One"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", last)
    [choice] = server.chat("Hi", stop_token_ids=[EOS]).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


def test_log_probabilities_name_tokens_and_their_bytes(
    serve: Serve, demo_model: ServedModel, answer: Script
) -> None:
    server = serve(answer)
    [choice] = server.chat("Hi", logprobs=True, top_logprobs=2).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == len(ids_of(demo_model, ANSWER)) + 1
    shown, end = entries[:-1], entries[-1]
    assert bytes(b for entry in shown for b in entry["bytes"]).decode() == ANSWER
    assert end["token"] == "<|im_end|>"
    for entry, token_id in zip(entries, [*ids_of(demo_model, ANSWER), EOS], strict=True):
        assert entry["token"] == demo_model.tokenizer.decode([token_id], skip_special_tokens=False)
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"]
        assert len(entry["top_logprobs"]) == 2
    [choice] = server.chat("Hi", logprobs=True).json()["choices"]
    assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[]] * len(entries)


def test_streamed_log_probabilities_and_ids_lose_no_token(
    serve: Serve, demo_model: ServedModel, answer: Script
) -> None:
    server = serve(answer)
    fields = {"logprobs": True, "return_token_ids": True, "stop": ["heart attack"]}
    whole = server.chat("Hi", **fields).json()
    chunks = chunks_of(server.chat("Hi", stream=True, **fields))
    choices = [c for chunk in chunks for c in chunk["choices"]]
    tokens = [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    ids = [token_id for c in choices for token_id in c.get("token_ids", [])]
    assert tokens == whole["choices"][0]["logprobs"]["content"]
    assert ids == whole["choices"][0]["token_ids"] == [*ids_of(demo_model, ANSWER), EOS]
    prompt = list(server.backend.generations[0].prompt)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"] == prompt


@pytest.mark.parametrize("stream", [False, True])
def test_who_made_the_tokens_can_be_seen(serve: Serve, stream: bool) -> None:
    server = serve(always(Start(0.25), 1000, 1000, 1000, 1000, EOS))
    response = server.chat("Hi", x_dualpace=True, stream=stream)
    last = chunks_of(response)[-1] if stream else response.json()
    [generation] = server.backend.generations
    by_engine = [Engine(i % 2) for i in range(generation.num_tokens)]  # the fake's rule
    assert last["choices"][0]["x_dualpace"] == {
        "tokens": {"gpu": by_engine.count(Engine.GPU), "cpu": by_engine.count(Engine.CPU)},
        "assisted": 1,
        "queue_ms": 250.0,
    }
    assert "x_dualpace" not in server.chat("Hi").json()["choices"][0]


def test_text_parts_are_joined_by_lines(serve: Serve, demo_model: ServedModel) -> None:
    server = serve(always(EOS))
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert server.chat(parts).status_code == server.chat("one\ntwo").status_code == 200
    first, second = server.backend.generations
    assert first.prompt == second.prompt


def test_a_templates_own_words_reach_the_client(serve: Serve, demo_model: ServedModel) -> None:
    strict = served_model(
        ("demo",),
        demo_model.tokenizer,
        chat_template="{{ raise_exception('Conversation roles must alternate') }}",
    )
    response = serve(model=strict).chat("Hi")
    assert response.status_code == 400
    assert "Conversation roles must alternate" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "messages"


def prompt_text(server: LiveServer, model: ServedModel, **fields: Any) -> str:
    """Return what the engines got as the prompt."""
    response = server.chat("Hi", **fields)
    assert response.status_code == 200, response.text
    return model.tokenizer.decode(list(server.backend.generations[-1].prompt))


@pytest.mark.parametrize(
    ("source", "fields", "expected"),
    [
        ("{{ reasoning_effort }}", {"reasoning_effort": "high"}, "high"),
        ("{{ reasoning_effort }}", {"reasoning_effort": "none"}, "none"),
        ("{{ enable_thinking }}", {"reasoning_effort": "low"}, "True"),
        ("{{ enable_thinking }}", {"reasoning_effort": "none"}, "False"),
        (
            "{{ enable_thinking }}",
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            "False",
        ),
        ("{{ enable_thinking is defined }}", {}, "False"),
        (
            "{% for d in documents %}{{ d.title }}:{{ d.text }};{% endfor %}",
            {"documents": [{"title": "a", "text": "b"}, {"text": "c"}]},
            "a:b;:c;",
        ),
    ],
)
def test_templates_get_what_they_know_of(
    serve: Serve, demo_model: ServedModel, source: str, fields: dict[str, Any], expected: str
) -> None:
    model = replace(demo_model, template=ChatTemplate(source, {}))
    server = serve(always(EOS), model=model)
    assert prompt_text(server, model, **fields) == expected
    if "reasoning_effort" in fields:
        effort = {"effort": fields.pop("reasoning_effort")}
        body = {"input": "Hi", "reasoning": effort, **fields}
        assert server.post("/v1/responses", body).status_code == 200
        first, second = server.backend.generations
        assert first.prompt == second.prompt
