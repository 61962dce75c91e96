"""What a client asks for, as it travels from the gateway to whichever engine owns the request."""

import enum
from dataclasses import dataclass

MAX_STOP_TOKEN_IDS = 32
"""Stop ids that the sequence table has room for; a request with more is refused at the gateway."""

MAX_LOGPROBS = 20

MAX_TOP_K = (1 << 31) - 1


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

    def __post_init__(self) -> None:
        assert self.temperature >= 0.0
        assert 0.0 < self.top_p <= 1.0
        assert 0 <= self.top_k <= MAX_TOP_K
        assert 0.0 <= self.min_p <= 1.0
        assert 0 <= self.seed < 1 << 64
        assert self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS


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
    """Reading of the node's monotonic clock; ranks requests by age."""

    def __post_init__(self) -> None:
        assert self.prompt_tokens > 0
        assert self.max_tokens > 0
        assert len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS

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
