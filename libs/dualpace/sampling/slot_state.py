"""What sampling remembers of the request in a slot: token counts, and how far its grammar is.

All of it follows from the request and its token ids. So an engine that gets a request from its
peer, or an arena from an earlier process, rebuilds it by reading the token ids once; after that it
reads one a step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dualpace.core.request import LogitAdjustments, Request
from dualpace.sampling.token_counts import TokenCounts

KnownTokens = Callable[[int, int], Sequence[int]]
"""Returns the token ids at positions `begin` .. `end - 1` of a sequence."""


class Matcher(Protocol):
    """How far a sequence is in its grammar."""

    def consume(self, token_ids: Sequence[int]) -> None:
        """Go on by generated tokens. Raises GrammarError."""
        ...

    def allowed(self) -> npt.NDArray[np.int32]:
        """Return which tokens may follow, a bit each, 32 a word, low bits first.

        Raises GrammarError.
        """
        ...


class GrammarSource(Protocol):
    """Makes matchers."""

    def matcher(self, grammar: str) -> Matcher:
        """Return a matcher at the start of a grammar. Raises GrammarError."""
        ...


@dataclass(slots=True)
class SlotState:
    """The state of one request's sampling. Only requests that adjust logits have one."""

    request: Request
    adjustments: LogitAdjustments
    bias_ids: npt.NDArray[np.int64]
    biases: npt.NDArray[np.float32]
    allowed_ids: npt.NDArray[np.int64]
    matcher: Matcher | None
    counts: TokenCounts = field(default_factory=TokenCounts)
    allowed_words: npt.NDArray[np.int32] | None = None
    """What the grammar allows next, as `Matcher.allowed` tells it."""
    num_known: int = 0
    """Tokens that counts and matcher have seen."""

    @classmethod
    def of(cls, request: Request, grammars: GrammarSource) -> "SlotState":
        """Return the state before the first token. Raises GrammarError."""
        adjustments = request.sampling.adjustments
        assert adjustments is not None
        return cls(
            request=request,
            adjustments=adjustments,
            bias_ids=np.array([i for i, _ in adjustments.logit_bias], np.int64),
            biases=np.array([bias for _, bias in adjustments.logit_bias], np.float32),
            allowed_ids=np.array(adjustments.allowed_token_ids, np.int64),
            matcher=grammars.matcher(adjustments.grammar) if adjustments.grammar else None,
        )

    def catch_up(self, position: int, known: KnownTokens) -> None:
        """Take in the tokens before `position`. Raises GrammarError."""
        prompt_tokens = self.request.prompt_tokens
        adjustments = self.adjustments
        if adjustments.penalises:
            if self.num_known < prompt_tokens and adjustments.repetition_penalty != 1.0:
                self.counts.add_prompt(known(self.num_known, prompt_tokens))
            self.counts.add_generated(known(max(self.num_known, prompt_tokens), position))
        if self.matcher is not None:
            generated = known(max(self.num_known, prompt_tokens), position)
            if len(generated):
                self.matcher.consume(generated)
            self.allowed_words = self.matcher.allowed()
        self.num_known = position

    def holds_back_stops(self, position: int) -> bool:
        """Whether the token at `position` comes too early to be a stop token."""
        return position < self.request.prompt_tokens + self.adjustments.min_tokens
