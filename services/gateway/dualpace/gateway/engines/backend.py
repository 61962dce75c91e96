"""What the HTTP side needs from the engines, and nothing about how they are reached.

A `Backend` is one node. `generate` hands over a tokenized prompt and gives back a `Generation`,
from which tokens come in order of position without gaps or repeats, whichever engine made them and
however often the request moved between them.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dualpace.core.messages import TokenLogprobs
from dualpace.core.request import Engine, FinishReason, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """What one choice of a request asks of the engines."""

    max_tokens: int
    stop_token_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0
    """Lower is sooner."""
    prompt_logprobs: int | None = None
    """How many alternatives to report for each prompt token; None: no report."""
    first_token_target_s: float = 0.0
    """When the first token is due, from now; of one priority, what is due first goes first."""
    token_target_s: float | None = None
    """Between later tokens; None: no target."""


class GeneratedToken(NamedTuple):
    """The next token, and the engine that made it."""

    position: int
    """Counts from the start of the prompt, from zero."""
    token_id: int
    engine: Engine
    logprobs: TokenLogprobs | None = None
    assisted: bool = False
    """Whether the gpu-engine computed the dense stages of the host's iteration that made it."""


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """Log-probabilities of prompt tokens at `start` and on; all come before the first token."""

    start: int
    tokens: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class GenerationStart:
    """The engines begin to compute the prompt; comes before everything else, and once."""

    waited_s: float
    """Since they were given the request."""


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """Always the last event of a generation, and never together with others."""

    reason: FinishReason
    message: str = ""
    """For ERROR and REFUSED: a sentence that may be shown to the client."""


GenerationEvent = GenerationStart | ScoredPrompt | GeneratedToken | GenerationEnd


class Generation(Protocol):
    """One running request.

    Iterate it once; `cancel` may be called at any time, more than once, from the event loop.
    """

    def __aiter__(self) -> AsyncIterator[Sequence[GenerationEvent]]:
        """Yield what has come, as soon as something has: one event, or several that are there.

        In all: the start, the prompt's scores if asked for, tokens in order; then, by itself, one
        GenerationEnd.
        """
        ...

    def cancel(self) -> None:
        """Give the request up.

        Engines free what it holds; the iterator ends with reason CANCELLED.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """What is known of one engine, for health and metrics."""

    connected: bool
    heartbeat_age_s: float | None
    """Seconds since the engine last said that it is alive; None before the first time."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """Numbers by name, as the engine reports them.

    Running, waiting, free_blocks, total_blocks, …
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """Facts of the node that do not change while it serves."""

    max_model_len: int
    """Most tokens, prompt and generation together, that a request may have.

    Model and KV memory allow them.
    """
    vocab_size: int
    max_request_bytes: int
    """Room that a request's parameters, grammar and all, have in the engines."""


class Backend(Protocol):
    """The engines of one node."""

    async def start(self) -> None:
        """Connect to every engine.

        Returns once generation is possible. Raises DualPaceError when that cannot be.
        """
        ...

    async def stop(self) -> None:
        """Cancel what is running and disconnect."""
        ...

    async def failed(self) -> Exception:
        """Wait, once started, for what makes it impossible to serve any more; return it."""
        ...

    @property
    def info(self) -> NodeInfo:
        """Facts of the node; valid once started."""
        ...

    def engines(self) -> Mapping[Engine, EngineState]:
        """Current state by engine."""
        ...

    def unready_reason(self) -> str | None:
        """Why a request sent now might hang or fail; None when the node is ready."""
        ...

    def generate(self, prompt: tuple[int, ...], params: GenerationParams) -> Generation:
        """Start a request. Raises PeerLostError when the engines are not connected."""
        ...
