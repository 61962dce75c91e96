"""What the processes of a node say to each other.

Plain values: codecs and transports live in `ipc`.

Three conversations, each ordered within itself and with no order between them:

- gateway to an engine: `Submit`, `Cancel`, `Live`, `Ask`;  an engine to its gateway: `TokenEvent`,
  `FinishEvent`, `PromptLogprobs`, `StartEvent`, `Ownership`.
- gpu-engine to cpu-engine: `Begin`, `Reserve`, `Commit`, `Recall`, `Release`, `Cancel`.
- cpu-engine to gpu-engine: `Reserved`, `Refused`, `Returned`, `Finished`, `HostStatus`.

A request has exactly one owner. It is the gpu-engine until `Commit`, the cpu-engine until
`Returned` or `Finished`. Only the owner samples tokens for it.

What the engines agreed holds as long as their session. When it ends, each keeps what it owns, and
whatever had neither of them as its owner is given to the gpu-engine again by the gateway, which
learns of it from `Ownership` and, after a gpu-engine's death, by an `Ask` (ADR 5).
"""

import enum
from dataclasses import dataclass

from dualpace.core.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Submit:
    """A new request and its prompt, or one that lost its engine, with the tokens seen of it."""

    request: Request
    prompt: tuple[int, ...]
    generated: tuple[int, ...] = ()
    """The gateway has these, in order: generation goes on behind them."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop working for a request and free what it holds. Unknown ids are ignored."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Live:
    """Every request of a gateway that is still wanted; the first word to a cpu-engine.

    What that resumes from the arena, and is not among these, has nobody waiting for it.
    """

    gateway_id: int
    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Say whether the cpu-engine owns a request that no gpu-engine answers for any more.

    The answer is an `Ownership`, after the tokens at `next_position` and later that the gateway may
    not have: those known before the cpu-engine, or this process of it, owned the request.
    """

    gateway_id: int
    request_id: int
    next_position: int
    """The first that the gateway lacks."""
    device: int = 0
    """Incarnation of the gpu-engine that answered for it last: while a session with that one is
    open, a commit may still be on its way. 0: that engine has given the request up itself."""
    serial: int = 0
    """Comes back in the answer."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of the chosen token, and the most likely alternatives in falling order."""

    chosen: float
    top: tuple[tuple[int, float], ...]
    rank: int | None = None
    """Place of the chosen token among all, from 1; told of prompt tokens alone."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token. `position` counts from the start of the prompt, from zero."""

    gateway_id: int
    request_id: int
    position: int
    token_id: int
    logprobs: TokenLogprobs | None = None
    repeat: bool = False
    """Whether the other engine made this token, and this one says it again in taking over."""
    assisted: bool = False
    """Whether the gpu-engine computed the dense stages of the host's iteration that made it."""


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """No token at `end_position` or later will come.

    Those before it have been sent, by one engine or both.
    """

    gateway_id: int
    request_id: int
    end_position: int
    reason: FinishReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of prompt tokens at `start` and the positions after it.

    All of them come before the request's first token; a recomputed prompt repeats them. `chosen`
    is the prompt's own token. Position 0 has none: nothing comes before it.
    """

    gateway_id: int
    request_id: int
    start: int
    tokens: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class StartEvent:
    """The computation of a request begins, for the first time; comes before all else of it."""

    gateway_id: int
    request_id: int
    waited_s: float
    """Since its arrival, the compilation of its grammar included."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whether an engine owns a request; said when asked, or when it ceases to without an end.

    One that an engine disowns will not be owned by it again, unless the gateway submits it anew.
    """

    gateway_id: int
    request_id: int
    owned: bool
    serial: int = 0
    """Of the `Ask` that this answers; 0: nobody asked."""


GatewayWord = Submit | Cancel | Live | Ask
RequestEvent = TokenEvent | FinishEvent | PromptLogprobs | StartEvent
EngineEvent = RequestEvent | Ownership


@dataclass(frozen=True, slots=True)
class Begin:
    """The first word of a session: no copy of an earlier one touches host blocks any more."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Ask for a sequence slot and host blocks that hold `num_tokens` tokens."""

    request_id: int
    num_tokens: int
    grammar: str = ""
    """The request's grammar, so that it is compiled by the time of the commit."""


@dataclass(frozen=True, slots=True)
class Commit:
    """KV and token ids of `num_tokens` tokens are in the arena (KV of all but the last).

    Take the request over.
    """

    request: Request
    num_tokens: int
    return_at: int | None = None
    """Give the request back once this many tokens are known; None: keep it until it ends."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Give a committed request back at the next step boundary."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Release:
    """Free slot and blocks of a reservation, or of a request that was returned with its KV."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation was made. The copy may write `blocks`, in order, from now on."""

    request_id: int
    slot: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no room for a reservation now."""

    request_id: int
    reason: str


class ReturnCause(enum.IntEnum):
    """Why the cpu-engine gives a request back."""

    RECALLED = 1
    """Asked to, by `Recall` or by `return_at`; blocks stay reserved until `Release`."""
    EVICTED = 2
    """Host blocks ran out.

    Slot and blocks are free already and the KV is gone. Token ids are in the message.
    """


@dataclass(frozen=True, slots=True)
class Returned:
    """The gpu-engine owns the request again. Its `tokens` are those generated since `Commit`."""

    request_id: int
    cause: ReturnCause
    num_tokens: int
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    """Host blocks that hold the KV of all but the last token; empty when evicted."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A committed request ended on the host and holds nothing there any more."""

    request_id: int


@dataclass(frozen=True, slots=True)
class HostStatus:
    """How full the host is; sent when it changes."""

    total_blocks: int
    free_blocks: int
    free_slots: int
    running: int


HandoffCommand = Begin | Reserve | Commit | Recall | Release | Cancel
HandoffEvent = Reserved | Refused | Returned | Finished | HostStatus
