"""POST /v1/completions, whole and streamed."""

from typing import Any

import pytest

from dualpace.core.messages import TokenLogprobs
from dualpace.core.request import Engine
from dualpace.gateway.engines.backend import GeneratedToken, GenerationParams
from dualpace.gateway.text.model import ServedModel
from dualpace.testing.fake_backend import FakeGeneration, Script, Step, always
from tests.unit.gateway.conftest import CORPUS, Serve, chunks_of, ids_of

EOS = 2
ANSWER = CORPUS[15]


def repeat_prompt(prompt: tuple[int, ...], _: GenerationParams) -> list[Step]:
    """Answer with the prompt itself."""
    return [*prompt, EOS]


def test_a_whole_answer(serve: Serve, demo_model: ServedModel) -> None:
    server = serve(repeat_prompt)
    body = server.complete(ANSWER, max_tokens=200).json()
    ids = ids_of(demo_model, ANSWER)
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", "demo")
    assert body["choices"] == [
        {
            "index": 0,
            "text": ANSWER,
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": len(ids),
        "completion_tokens": len(ids) + 1,
        "total_tokens": 2 * len(ids) + 1,
    }


def test_every_form_of_prompt(serve: Serve, demo_model: ServedModel) -> None:
    server = serve(repeat_prompt)
    one, two = ids_of(demo_model, "One fish"), ids_of(demo_model, "Two fish")
    for prompt, texts in (
        ("One fish", ["One fish"]),
        (["One fish", "Two fish"], ["One fish", "Two fish"]),
        (one, ["One fish"]),
        ([one, two], ["One fish", "Two fish"]),
    ):
        body = server.complete(prompt).json()
        assert [choice["text"] for choice in body["choices"]] == texts
        count = sum(len(ids_of(demo_model, text)) for text in texts)
        assert body["usage"]["prompt_tokens"] == count


def test_prompts_times_n_are_numbered_prompt_by_prompt(serve: Serve) -> None:
    server = serve(repeat_prompt)
    body = server.complete(["a", "b"], n=2).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "a"), (1, "a"), (2, "b"), (3, "b"),
    ]  # fmt: skip
    assert body["usage"]["prompt_tokens"] == 2
    chunks = chunks_of(server.complete(["a", "b"], n=2, stream=True))
    texts = dict.fromkeys(range(4), "")
    for choice in (c for chunk in chunks for c in chunk["choices"]):
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_a_streamed_answer_is_the_whole_one_in_pieces(serve: Serve) -> None:
    server = serve(repeat_prompt)
    fields = {"max_tokens": 200, "logprobs": 2, "return_token_ids": True}
    whole = server.complete(ANSWER, **fields).json()
    *chunks, usage = chunks_of(
        server.complete(ANSWER, stream=True, stream_options={"include_usage": True}, **fields)
    )
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    [expected] = whole["choices"]
    assert choices[0]["prompt_token_ids"] == expected["prompt_token_ids"]
    assert "".join(c["text"] for c in choices) == expected["text"] == ANSWER
    joined: dict[str, list[object]] = {name: [] for name in expected["logprobs"]}
    for choice in choices:
        for name, values in (choice["logprobs"] or {}).items():
            joined[name] += values
    assert joined == expected["logprobs"]
    ids = [token_id for c in choices for token_id in c.get("token_ids", [])]
    assert ids == expected["token_ids"]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_sixteen_tokens_by_default(serve: Serve) -> None:
    server = serve(always(*[1000] * 100))
    body = server.complete("x").json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_before_the_text(
    serve: Serve, demo_model: ServedModel, stream: bool
) -> None:
    server = serve(always(*ids_of(demo_model, " there"), EOS))
    for prompt in ("Hé llo", ids_of(demo_model, "Hé llo")):
        response = server.complete(prompt, echo=True, stream=stream)
        if stream:
            chunks = chunks_of(response)
            text = "".join(c["text"] for chunk in chunks for c in chunk["choices"])
        else:
            text = response.json()["choices"][0]["text"]
        assert text == "Hé llo there"


@pytest.mark.parametrize("max_tokens", [0, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_lists_the_prompts_log_probabilities_first(
    serve: Serve, stream: bool, max_tokens: int
) -> None:
    """As evaluation harnesses ask: with max_tokens 0 the prompt is all there is."""
    server = serve(repeat_prompt)
    response = server.complete(
        "Hé llo", echo=True, logprobs=1, max_tokens=max_tokens, stream=stream
    )
    if stream:
        choices = [c for chunk in chunks_of(response) for c in chunk["choices"]]
        text = "".join(c["text"] for c in choices)
        listed: dict[str, list[Any]] = {}
        for choice in choices:
            for name, values in (choice["logprobs"] or {}).items():
                listed.setdefault(name, []).extend(values)
    else:
        [choice] = response.json()["choices"]
        assert "prompt_logprobs" not in choice
        assert response.json()["usage"]["completion_tokens"] == min(max_tokens, 4 + 1)
        text, listed = choice["text"], choice["logprobs"]
    prompt = server.backend.generations[0].prompt
    assert server.backend.generations[0].params.prompt_logprobs == 1
    assert text == ("Hé llo" * 2 if max_tokens else "Hé llo")
    assert listed["token_logprobs"][0] is None
    assert listed["top_logprobs"][0] is None
    assert listed["token_logprobs"][1 : len(prompt)] == [-0.25] * (len(prompt) - 1)
    assert (len(listed["tokens"]) > len(prompt)) is bool(max_tokens)
    for token, offset in zip(listed["tokens"], listed["text_offset"], strict=True):
        assert text[offset:].startswith(token) or offset == len(text)


def test_prompt_log_probabilities_by_token_id(serve: Serve, demo_model: ServedModel) -> None:
    server = serve(always(1000, EOS))
    prompt = ids_of(demo_model, "The quick")
    [choice] = server.complete(prompt, prompt_logprobs=2).json()["choices"]
    first, second = choice["prompt_logprobs"]
    assert first is None
    label = demo_model.token_text.label
    chosen, better = prompt[1], prompt[1] + 1
    assert second == {
        str(chosen): {"logprob": -0.25, "rank": 2, "decoded_token": label(chosen)},
        str(better): {"logprob": -0.2, "rank": 1, "decoded_token": label(better)},
    }
    body = server.chat("Hi", prompt_logprobs=0).json()
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert all(len(entry) == 1 for entry in body["prompt_logprobs"][1:])


def test_tokens_can_be_listed_by_id(serve: Serve) -> None:
    server = serve(always(1000, EOS))
    fields = {"logprobs": 1, "return_tokens_as_token_ids": True}
    [choice] = server.complete("x", **fields).json()["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:1000", f"token_id:{EOS}"]
    assert "token_id:1000" in choice["logprobs"]["top_logprobs"][0]


def test_offsets_of_log_probabilities_point_into_the_text(
    serve: Serve, demo_model: ServedModel
) -> None:
    server = serve(repeat_prompt)
    [choice] = server.complete(CORPUS[0], max_tokens=200, logprobs=1).json()["choices"]
    listed = choice["logprobs"]
    for token, offset in list(zip(listed["tokens"], listed["text_offset"], strict=True))[:-1]:
        assert choice["text"][offset:].startswith(token)
    assert listed["text_offset"][-1] == len(choice["text"])  # of the end token
    for token, logprob, top in zip(
        listed["tokens"], listed["token_logprobs"], listed["top_logprobs"], strict=True
    ):
        assert top[token] == logprob


def test_impossible_tokens_have_a_probability_that_json_can_carry(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impossible(self: FakeGeneration, token_id: int) -> GeneratedToken:
        self.num_tokens += 1
        logprobs = TokenLogprobs(float("-inf"), ((token_id, float("-inf")),))
        return GeneratedToken(self.num_tokens, token_id, Engine.GPU, logprobs)

    monkeypatch.setattr(FakeGeneration, "_token", impossible)
    server = serve(always(1000, EOS))
    [choice] = server.complete("x", logprobs=1).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0, -9999.0]


@pytest.fixture
def broken_script(demo_model: ServedModel) -> Script:
    table = demo_model.token_text
    half = next(i for i in range(len(table.pieces)) if table.piece(i) == b"\xe2")
    return always(*ids_of(demo_model, "x"), half, EOS)


@pytest.mark.parametrize("stream", [False, True])
def test_a_character_that_never_got_complete_shows_at_the_end(
    serve: Serve, broken_script: Script, stream: bool
) -> None:
    response = serve(broken_script).complete("x", stream=stream)
    if stream:
        chunks = chunks_of(response)
        texts = [c["text"] for chunk in chunks for c in chunk["choices"]]
        assert texts == ["x", "\N{REPLACEMENT CHARACTER}", ""]
    else:
        assert response.json()["choices"][0]["text"] == "x\N{REPLACEMENT CHARACTER}"


def test_the_byte_fallback_kind_of_tokenizer_serves_too(
    serve: Serve, plain_model: ServedModel
) -> None:
    server = serve(repeat_prompt, model=plain_model)
    for text in CORPUS:
        [choice] = server.complete(text, max_tokens=500).json()["choices"]
        # The continuation of a text begins with the space that begins a word.
        assert choice["text"] == " " + text
    assert server.chat("Hi").json()["error"]["param"] == "messages"
