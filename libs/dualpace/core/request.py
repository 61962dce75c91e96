"""What a client asks for, as it travels from the gateway to whichever engine owns the request."""

import enum
import math
from dataclasses import dataclass

from dualpace.core.trace_context import TraceContext

MAX_STOP_TOKEN_IDS = 32
"""Stop ids of a request; one with more is refused at the gateway."""

MAX_LOGPROBS = 20

MAX_LOGIT_BIAS = 100.0
"""Of one token, either way: enough to force or to ban it."""

MAX_BIASED_TOKENS = 1024

MAX_ALLOWED_TOKENS = 1024

MAX_PENALTY = 2.0
"""Of presence and frequency, either way."""

MIN_PRIORITY, MAX_PRIORITY = -(1 << 31), (1 << 31) - 1

MAX_TOP_K = (1 << 31) - 1

MAX_TARGET_S = 86_400.0
"""Of a client's latency targets."""


class Engine(enum.IntEnum):
    """The two decode engines of a node."""

    GPU = 0
    CPU = 1


def other_engine(engine: Engine) -> Engine:
    """Return the engine's peer."""
    return Engine.CPU if engine is Engine.GPU else Engine.GPU


class FinishReason(enum.IntEnum):
    """Why no further token of a request will come."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4
    REFUSED = 5
    """What the client asked for cannot be done; the message says what, and is for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitAdjustments:
    """What changes a row's logits before a token is chosen. By default nothing does."""

    presence_penalty: float = 0.0
    """Taken off the logits of tokens that were generated before."""
    frequency_penalty: float = 0.0
    """Taken off as often as the token was generated."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the prompt or generated."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added, by token id."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that may be chosen; empty: all."""
    min_tokens: int = 0
    """Stop tokens are not chosen before so many tokens were generated."""
    grammar: str = ""
    """What the generated text must be: a grammar in llguidance's format; empty: anything."""

    def __post_init__(self) -> None:
        assert -MAX_PENALTY <= self.presence_penalty <= MAX_PENALTY
        assert -MAX_PENALTY <= self.frequency_penalty <= MAX_PENALTY
        assert self.repetition_penalty > 0.0
        assert math.isfinite(self.repetition_penalty)
        assert len(self.logit_bias) <= MAX_BIASED_TOKENS
        assert all(-MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS for _, bias in self.logit_bias)
        assert len(self.allowed_token_ids) <= MAX_ALLOWED_TOKENS
        assert self.min_tokens >= 0

    @property
    def penalises(self) -> bool:
        """Whether the tokens so far change the logits."""
        plain = self.presence_penalty == self.frequency_penalty == 0.0
        return not plain or self.repetition_penalty != 1.0

    @property
    def neutral(self) -> bool:
        """Whether nothing is changed."""
        return self == LogitAdjustments()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. The noise depends on (seed, position) alone."""

    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means all."""
    min_p: float = 0.0
    seed: int = 0
    """Unsigned, 64 bits."""
    logprobs: int | None = None
    """How many alternatives to report beside the chosen token's log-probability; None: neither."""
    adjustments: LogitAdjustments | None = None
    """None for the many requests that want none: their rows are sampled as they are."""

    def __post_init__(self) -> None:
        assert self.temperature >= 0.0
        assert 0.0 < self.top_p <= 1.0
        assert 0 <= self.top_k <= MAX_TOP_K
        assert 0.0 <= self.min_p <= 1.0
        assert 0 <= self.seed < 1 << 64
        assert self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS

    @property
    def grammar(self) -> str:
        """The grammar of the generated text; empty: there is none."""
        return "" if self.adjustments is None else self.adjustments.grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to generate. A client's `n` choices are `n` requests."""

    request_id: int
    """Unsigned, 63 bits, unique among live requests of a node; chosen by the gateway."""
    gateway_id: int
    """The gateway session that gets the tokens; unsigned, 63 bits."""
    prompt_tokens: int
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends after one of these; the model's own end tokens included, unless ignored."""
    sampling: SamplingParams = SamplingParams()
    arrival_s: float = 0.0
    """Reading of the node's monotonic clock."""
    priority: int = 0
    """Lower is sooner; requests of equal priority go by when their first token is due."""
    prompt_logprobs: int | None = None
    """How many alternatives to report for each prompt token but the first; None: no report."""
    trace: TraceContext | None = None
    """Below which engines add spans of what they do for it; None: they add none."""
    first_token_target_s: float = 0.0
    """After arrival, when the first token is due; of one priority, what is due first goes first."""
    token_target_s: float | None = None
    """Between later tokens, at most; those with the strictest stay on the device longest."""

    def __post_init__(self) -> None:
        assert self.prompt_tokens > 0
        assert self.max_tokens > 0
        assert len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS
        assert MIN_PRIORITY <= self.priority <= MAX_PRIORITY
        assert self.prompt_logprobs is None or 0 <= self.prompt_logprobs <= MAX_LOGPROBS
        assert 0.0 <= self.first_token_target_s <= MAX_TARGET_S
        assert self.token_target_s is None or 0.0 < self.token_target_s <= MAX_TARGET_S

    @property
    def rank(self) -> tuple[int, float, int]:
        """Orders requests, the most urgent first; ties go by id, so that every run agrees."""
        return (self.priority, self.arrival_s + self.first_token_target_s, self.request_id)

    @property
    def max_total_tokens(self) -> int:
        """Prompt and generation together."""
        return self.prompt_tokens + self.max_tokens

    def finish_reason(self, num_tokens: int, last_token_id: int) -> FinishReason | None:
        """Return why generation ends now that `num_tokens` are known, or None to go on."""
        if last_token_id in self.stop_token_ids:
            return FinishReason.STOP
        if num_tokens >= self.max_total_tokens:
            return FinishReason.LENGTH
        return None
