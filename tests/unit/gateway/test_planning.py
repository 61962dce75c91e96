import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.request import MAX_STOP_TOKEN_IDS, LogitAdjustments
from dualpace.gateway.engines.backend import NodeInfo
from dualpace.gateway.errors import ApiError
from dualpace.gateway.planning import (
    ChoicePlan,
    Timing,
    chat_limit,
    check_choice_count,
    completion_limit,
    kept_tokens,
    plan_choices,
)
from dualpace.gateway.protocol.chat import ChatRequest
from dualpace.gateway.protocol.completions import CompletionRequest
from dualpace.gateway.text.model import SamplingDefaults, ServedModel, served_model
from dualpace.gateway.text.prompts import TokenizedPrompt

TIMING = Timing(-4, 1.5, 0.1)
INFO = NodeInfo(max_model_len=100, vocab_size=1000, max_request_bytes=1 << 16)


def completion(**fields: object) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "x", **fields})


def plan(
    model: ServedModel, request: CompletionRequest, *prompt_lengths: int
) -> tuple[ChoicePlan, ...]:
    prompts = [TokenizedPrompt((5,) * length) for length in prompt_lengths or (3,)]
    return plan_choices(
        request,
        prompts,
        prompt_param="prompt",
        limit=completion_limit(request),
        logprobs=request.logprobs,
        timing=TIMING,
        model=model,
        info=INFO,
    )


@given(seed=st.integers(-(2**63), 2**63 - 1), n=st.integers(1, 4), prompts=st.integers(1, 3))
def test_choice_i_has_seed_plus_i_in_64_bits(
    plain_model: ServedModel, seed: int, n: int, prompts: int
) -> None:
    plans = plan(plain_model, completion(seed=seed, n=n), *[3] * prompts)
    assert [p.index for p in plans] == list(range(n * prompts))
    assert [p.params.sampling.seed for p in plans] == [
        (seed + i) % 2**64 for i in range(n * prompts)
    ]


def test_without_a_seed_no_two_requests_are_alike(plain_model: ServedModel) -> None:
    seeds = {plan(plain_model, completion())[0].params.sampling.seed for _ in range(20)}
    assert len(seeds) == 20


def test_clients_win_over_the_publisher_who_wins_over_the_api(plain_model: ServedModel) -> None:
    model = served_model(
        ("x",), plain_model.tokenizer, defaults=SamplingDefaults(temperature=0.6, top_k=20)
    )
    [own] = plan(model, completion(temperature=0.3, top_k=-1, top_p=0.5, min_p=0.1))
    [default] = plan(model, completion())
    [api] = plan(plain_model, completion())
    sampling = own.params.sampling
    assert (sampling.temperature, sampling.top_k) == (0.3, 0)
    assert (sampling.top_p, sampling.min_p) == (0.5, 0.1)
    sampling = default.params.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 1.0)
    sampling = api.params.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 0, 1.0)


def test_temperatures_too_low_to_divide_by_are_greedy(plain_model: ServedModel) -> None:
    [tiny] = plan(plain_model, completion(temperature=1e-300))
    [small] = plan(plain_model, completion(temperature=1e-4))
    assert (tiny.params.sampling.temperature, small.params.sampling.temperature) == (0.0, 1e-4)


def test_end_tokens_stop_unless_ignored_and_come_before_the_clients(
    plain_model: ServedModel,
) -> None:
    [plain] = plan(plain_model, completion(stop_token_ids=[7, 2, 7]))
    [ignoring] = plan(plain_model, completion(stop_token_ids=[7], ignore_eos=True))
    assert plain.params.stop_token_ids == (2, 7)
    assert ignoring.params.stop_token_ids == (7,)


def test_no_more_stop_tokens_than_engines_have_room_for(plain_model: ServedModel) -> None:
    fitting = list(range(10, 10 + MAX_STOP_TOKEN_IDS - 1))
    [most] = plan(plain_model, completion(stop_token_ids=fitting))
    assert len(most.params.stop_token_ids) == MAX_STOP_TOKEN_IDS
    with pytest.raises(ApiError, match=f"at most {MAX_STOP_TOKEN_IDS}"):
        plan(plain_model, completion(stop_token_ids=[*fitting, 9]))


def test_completions_get_16_tokens_or_what_is_left(plain_model: ServedModel) -> None:
    assert [p.params.max_tokens for p in plan(plain_model, completion(), 3, 84, 85, 99)] == [
        16, 16, 15, 1,
    ]  # fmt: skip


def test_chats_get_the_rest_of_the_context_and_the_newer_field_wins() -> None:
    def limit(**fields: object) -> tuple[str, int | None, bool]:
        body = {"messages": [{"role": "user", "content": "x"}], **fields}
        made = chat_limit(ChatRequest.model_validate(body))
        return made.param, made.max_tokens, made.explicit

    assert limit() == ("max_tokens", None, False)
    assert limit(max_tokens=5) == ("max_tokens", 5, True)
    assert limit(max_tokens=5, max_completion_tokens=7) == ("max_completion_tokens", 7, True)


@pytest.mark.parametrize(
    ("length", "max_tokens", "param"),
    [(100, None, "prompt"), (101, 1, "prompt"), (99, 2, "max_tokens"), (3, 10**30, "max_tokens")],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    plain_model: ServedModel, length: int, max_tokens: int | None, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        plan(plain_model, completion(max_tokens=max_tokens), length)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", param)
    assert str(length) in error.message
    assert "100" in error.message


def test_the_whole_context_can_be_used(plain_model: ServedModel) -> None:
    [most] = plan(plain_model, completion(max_tokens=97), 3)
    assert most.params.max_tokens == 97


@pytest.mark.parametrize("bad", [-1, 1000, 10**40])
def test_tokens_outside_the_vocabulary_are_refused(plain_model: ServedModel, bad: int) -> None:
    with pytest.raises(ApiError, match="vocabulary of 1000") as caught:
        plan(plain_model, completion(stop_token_ids=[bad]))
    assert caught.value.param == "stop_token_ids"
    request = completion()
    with pytest.raises(ApiError, match="vocabulary of 1000") as caught:
        plan_choices(
            request,
            [TokenizedPrompt((1, bad, 2))],
            prompt_param="prompt",
            limit=completion_limit(request),
            logprobs=None,
            timing=TIMING,
            model=plain_model,
            info=INFO,
        )
    assert caught.value.param == "prompt"


def test_generations_of_one_request_are_limited() -> None:
    check_choice_count(completion(n=4), 2, 8)
    with pytest.raises(ApiError, match="8 generations") as caught:
        check_choice_count(completion(n=3), 3, 8)
    assert caught.value.param == "n"


def test_adjustments_are_made_only_where_something_is_adjusted(plain_model: ServedModel) -> None:
    neutral = {"presence_penalty": 0, "repetition_penalty": 1.0, "logit_bias": {}, "min_tokens": 0}
    [plain] = plan(plain_model, completion(**neutral))
    assert plain.params.sampling.adjustments is None
    [adjusted] = plan(
        plain_model,
        completion(
            presence_penalty=-1,
            frequency_penalty=2,
            logit_bias={"5": -100, "007": 1.5},
            allowed_token_ids=[9, 5, 9],
            min_tokens=3,
        ),
    )
    assert adjusted.params.sampling.adjustments == LogitAdjustments(
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        logit_bias=((5, -100.0), (7, 1.5)),
        allowed_token_ids=(9, 5),
        min_tokens=3,
    )


def test_the_publishers_repetition_penalty_holds_unless_the_client_has_one(
    plain_model: ServedModel,
) -> None:
    defaults = SamplingDefaults(repetition_penalty=1.1)
    model = served_model(("x",), plain_model.tokenizer, defaults=defaults)
    [default] = plan(model, completion())
    assert default.params.sampling.adjustments == LogitAdjustments(repetition_penalty=1.1)
    [own] = plan(model, completion(repetition_penalty=1))
    assert own.params.sampling.adjustments is None


@pytest.mark.parametrize(
    ("wanted", "max_tokens", "kept"),
    [(None, None, None), (5, None, 5), (500, None, 500), (-1, None, 84), (-1, 30, 70)],
)
def test_prompts_are_cut_only_as_far_as_asked(
    wanted: int | None, max_tokens: int | None, kept: int | None
) -> None:
    request = completion(truncate_prompt_tokens=wanted, max_tokens=max_tokens)
    assert kept_tokens(request, completion_limit(request), INFO.max_model_len) == kept


def test_engines_are_told_when_to_serve(plain_model: ServedModel) -> None:
    [planned] = plan(plain_model, completion())
    params = planned.params
    told = (params.priority, params.first_token_target_s, params.token_target_s)
    assert told == (TIMING.priority, TIMING.first_token_target_s, TIMING.token_target_s)
