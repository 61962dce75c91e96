"""From a validated request and its tokens to what the engines are asked for, per choice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dualpace.core.request import (
    MAX_STOP_TOKEN_IDS,
    MAX_TOP_K,
    LogitAdjustments,
    Request,
    SamplingParams,
)
from dualpace.core.trace_context import TraceContext
from dualpace.gateway.engines.backend import GenerationParams, NodeInfo
from dualpace.gateway.errors import context_length_exceeded, invalid, shorten
from dualpace.gateway.protocol.chat import ChatRequest
from dualpace.gateway.protocol.completions import CompletionRequest
from dualpace.gateway.protocol.generation import GenerationRequest
from dualpace.gateway.random_ids import random_bits
from dualpace.gateway.text.model import SamplingDefaults, ServedModel
from dualpace.gateway.text.output_grammar import OutputGrammar
from dualpace.gateway.text.prompts import TokenizedPrompt
from dualpace.ipc.codec import encoded_size

_GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy, as in vLLM: float32 logits cannot be divided by less."""

_COMPLETIONS_MAX_TOKENS = 16

_SEEDS = 1 << 64

_ANY_TRACE = TraceContext(bytes(16), bytes(8))
"""For a request's size: whether it is traced must not decide whether it fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePlan:
    """One choice of the answer: one generation."""

    index: int
    prompt: TokenizedPrompt
    params: GenerationParams
    form_param: str | None = None
    """The field that asked for the form of the text, to be named where it cannot be met."""
    shows_output: bool = True
    """False: only the prompt was asked for; an engine makes one token at least."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When a request is to be served."""

    priority: int
    """Lower is sooner."""
    first_token_target_s: float
    token_target_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimit:
    """How many tokens a request may generate, and which field said so."""

    param: str
    max_tokens: int | None
    """None: as many as fit."""
    explicit: bool
    """A limit of the client's is refused where it does not fit; a default is cut down."""


def chat_limit(request: ChatRequest) -> TokenLimit:
    """Return a chat request's limit; the newer of its two fields wins."""
    if request.max_completion_tokens is not None:
        return TokenLimit(
            param="max_completion_tokens", max_tokens=request.max_completion_tokens, explicit=True
        )
    explicit = request.max_tokens is not None
    return TokenLimit(param="max_tokens", max_tokens=request.max_tokens, explicit=explicit)


def completion_limit(request: CompletionRequest) -> TokenLimit:
    """Return a completion request's limit, 16 by default."""
    if request.max_tokens is None:
        return TokenLimit(param="max_tokens", max_tokens=_COMPLETIONS_MAX_TOKENS, explicit=False)
    return TokenLimit(param="max_tokens", max_tokens=request.max_tokens, explicit=True)


def kept_tokens(request: GenerationRequest, limit: TokenLimit, max_model_len: int) -> int | None:
    """Return how many tokens of a longer prompt are kept, its last ones; None: it is not cut."""
    wanted = request.truncate_prompt_tokens
    if wanted == -1:  # as many as leave room for what is to be generated
        return max(1, max_model_len - max(1, limit.max_tokens or 1))
    return wanted


def check_choice_count(request: GenerationRequest, num_prompts: int, max_choices: int) -> None:
    """Raise ApiError 400 if the request asks for too many generations at once."""
    if request.n * num_prompts > max_choices:
        prompts = f" times {num_prompts} prompts" if num_prompts > 1 else ""
        asked = f"{shorten(request.n)}{prompts}"
        raise invalid("n", f"{asked} is more than the {max_choices} generations allowed at once")


def plan_choices(
    request: GenerationRequest,
    prompts: Sequence[TokenizedPrompt],
    *,
    prompt_param: str,
    limit: TokenLimit,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    grammar: OutputGrammar | None = None,
    timing: Timing,
    model: ServedModel,
    info: NodeInfo,
) -> tuple[ChoicePlan, ...]:
    """Return every choice's plan, those of the first prompt first. Raises ApiError 400."""
    stop_token_ids = _stop_token_ids(request, model, info)
    seed = random_bits(64) if request.seed is None else request.seed
    sampling = _sampling(request, model.defaults, logprobs, grammar, info)
    plans: list[ChoicePlan] = []
    for prompt in prompts:
        _check_ids(prompt.token_ids, prompt_param, info)
        max_tokens = _max_tokens(len(prompt.token_ids), prompt_param, limit, info)
        for _ in range(request.n):
            index = len(plans)
            params = GenerationParams(
                max_tokens=max(1, max_tokens),
                stop_token_ids=stop_token_ids,
                sampling=replace(sampling, seed=(seed + index) % _SEEDS),
                priority=timing.priority,
                prompt_logprobs=prompt_logprobs,
                first_token_target_s=timing.first_token_target_s,
                token_target_s=timing.token_target_s,
            )
            plans.append(
                ChoicePlan(
                    index=index,
                    prompt=prompt,
                    params=params,
                    form_param=None if grammar is None else grammar.param,
                    shows_output=max_tokens > 0,
                )
            )
    _check_size(plans[0], info)
    return tuple(plans)


def _sampling(
    request: GenerationRequest,
    defaults: SamplingDefaults,
    logprobs: int | None,
    grammar: OutputGrammar | None,
    info: NodeInfo,
) -> SamplingParams:
    temperature = defaults.temperature if request.temperature is None else request.temperature
    top_k = defaults.top_k if request.top_k is None else request.top_k
    return SamplingParams(
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        top_k=min(max(top_k, 0), MAX_TOP_K),  # -1 also means all
        min_p=defaults.min_p if request.min_p is None else request.min_p,
        logprobs=logprobs,
        adjustments=_adjustments(request, defaults, grammar, info),
    )


def _adjustments(
    request: GenerationRequest,
    defaults: SamplingDefaults,
    grammar: OutputGrammar | None,
    info: NodeInfo,
) -> LogitAdjustments | None:
    for param, ids in (
        ("logit_bias", [token_id for token_id, _ in request.logit_bias]),
        ("allowed_token_ids", request.allowed_token_ids),
    ):
        _check_ids(ids, param, info)
    repetition_penalty = request.repetition_penalty
    if repetition_penalty is None:
        repetition_penalty = defaults.repetition_penalty
    adjustments = LogitAdjustments(
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=repetition_penalty,
        logit_bias=request.logit_bias,
        allowed_token_ids=request.allowed_token_ids,
        min_tokens=min(request.min_tokens, info.max_model_len),
        grammar="" if grammar is None else grammar.text,
    )
    return None if adjustments.neutral else adjustments


def _check_size(plan: ChoicePlan, info: NodeInfo) -> None:
    """Raise ApiError 400 for parameters that have no room in the engines."""
    params = plan.params
    if params.sampling.adjustments is None:
        return
    size = encoded_size(
        Request(
            request_id=_SEEDS - 1,
            gateway_id=_SEEDS - 1,
            prompt_tokens=len(plan.prompt.token_ids),
            max_tokens=params.max_tokens,
            stop_token_ids=params.stop_token_ids,
            sampling=params.sampling,
            arrival_s=1.0,
            priority=params.priority,
            prompt_logprobs=params.prompt_logprobs,
            trace=_ANY_TRACE,
            first_token_target_s=params.first_token_target_s,
            token_target_s=params.token_target_s,
        )
    )
    if size > info.max_request_bytes:
        message = f"its parameters take {size} bytes; there is room for {info.max_request_bytes}"
        raise invalid(plan.form_param or "logit_bias", message)


def _stop_token_ids(
    request: GenerationRequest, model: ServedModel, info: NodeInfo
) -> tuple[int, ...]:
    _check_ids(request.stop_token_ids, "stop_token_ids", info)
    end_tokens = () if request.ignore_eos else model.eos_token_ids
    stop_token_ids = tuple(dict.fromkeys(end_tokens + request.stop_token_ids))
    if len(stop_token_ids) > MAX_STOP_TOKEN_IDS:
        message = (
            f"at most {MAX_STOP_TOKEN_IDS} stop tokens are possible, of which the model's own end "
            f"tokens take {len(end_tokens)}"
        )
        raise invalid("stop_token_ids", message)
    return stop_token_ids


def _check_ids(token_ids: Sequence[int], param: str, info: NodeInfo) -> None:
    for extreme in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= extreme < info.vocab_size:
            raise invalid(param, _outside(extreme, info))


def _outside(token_id: int, info: NodeInfo) -> str:
    shown = token_id if abs(token_id) < _SEEDS else "a number of more than 64 bits"
    return f"token id {shown} is outside the vocabulary of {info.vocab_size} tokens"


def _max_tokens(num_prompt: int, prompt_param: str, limit: TokenLimit, info: NodeInfo) -> int:
    rest = info.max_model_len - num_prompt
    if rest < 1:
        raise context_length_exceeded(
            prompt_param,
            f"it has {num_prompt} tokens; prompt and generated tokens together may be "
            f"{info.max_model_len}",
        )
    if limit.max_tokens is None:
        return rest
    if limit.max_tokens > rest and limit.explicit:
        raise context_length_exceeded(
            limit.param,
            f"{shorten(limit.max_tokens)} tokens after a prompt of {num_prompt} are "
            f"{shorten(num_prompt + limit.max_tokens)}; prompt and generated tokens together may "
            f"be {info.max_model_len}",
        )
    return min(limit.max_tokens, rest)
