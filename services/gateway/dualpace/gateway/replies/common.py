"""Parts that both kinds of answer share: ids, usage, finish fields, `x_dualpace`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dualpace.core.request import Engine
from dualpace.gateway.choices import Choice, ChosenToken, Delta
from dualpace.gateway.random_ids import random_id
from dualpace.gateway.text.token_text import TokenText

_LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """What the client wants to see of its answer, and what every object of it carries."""

    reply_id: str
    model: str
    token_text: TokenText
    logprobs: int | None
    prompt_logprobs: int | None
    return_token_ids: bool
    tokens_as_ids: bool
    """Tokens are named token_id:<id> in listings, so that no two look alike."""
    x_dualpace: bool
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def lists_tokens(self) -> bool:
        """Whether anything of single tokens is shown."""
        return self.logprobs is not None or self.return_token_ids

    def head(self, kind: str) -> dict[str, Any]:
        """Return the fields that every object starts with."""
        return {"id": self.reply_id, "object": kind, "created": self.created, "model": self.model}

    def label(self, token_id: int) -> str:
        """Return the name of a token in listings of log-probabilities."""
        return f"token_id:{token_id}" if self.tokens_as_ids else self.token_text.label(token_id)


class Reply(Protocol):
    """One kind of answer, streamed or whole."""

    options: ReplyOptions

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        """Return the chunk that comes before a choice's text, if there is one."""
        ...

    def delta(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """Return the chunk for more text of a choice."""
        ...

    def closing(self, choice: Choice) -> dict[str, Any]:
        """Return a choice's last chunk, with its finish reason."""
        ...

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        """Return the chunk that ends a stream with usage."""
        ...

    def whole(
        self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]], usage: dict[str, int]
    ) -> dict[str, Any]:
        """Return the answer in one object. `deltas` has everything that was shown, by choice."""
        ...


def new_id(prefix: str) -> str:
    """Return an id that nothing else has, whatever the client called its request."""
    return prefix + random_id()


def usage_of(choices: Sequence[Choice]) -> dict[str, int]:
    """Count tokens: each prompt once, and all that was generated, stop tokens included."""
    prompts = {id(choice.plan.prompt): len(choice.plan.prompt.token_ids) for choice in choices}
    prompt_tokens = sum(prompts.values())
    completion_tokens = sum(choice.num_tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def going_on(tokens: Sequence[ChosenToken], options: ReplyOptions) -> dict[str, Any]:
    """Return the fields of a choice that goes on, with these tokens."""
    told = {"x_dualpace": _engines(tokens)} if _tells_engines(options) else {}
    return {**finish_fields(), **_token_ids(tokens, options), **told}


def ending(choice: Choice, tokens: Sequence[ChosenToken], options: ReplyOptions) -> dict[str, Any]:
    """Return the fields of a choice that has ended, with these tokens."""
    assert choice.finish is not None
    told = extras(choice, options)
    if _tells_engines(options):
        told["x_dualpace"] |= _engines(tokens)
    return {
        **finish_fields(choice.finish_reason, choice.finish.stop_reason),
        **_token_ids(tokens, options),
        **told,
    }


def extras(choice: Choice, options: ReplyOptions) -> dict[str, Any]:
    """Return `x_dualpace`, if it was asked for: how a choice that has ended was generated."""
    if not options.x_dualpace:
        return {}
    counts = {engine.name.lower(): choice.tokens_by_engine[engine] for engine in Engine}
    waited_ms = None if choice.waited_s is None else round(choice.waited_s * 1000, 3)
    told = {"tokens": counts, "assisted": choice.num_assisted, "queue_ms": waited_ms}
    return {"x_dualpace": told}


def finish_fields(
    reason: str | None = None, stop_reason: int | str | None = None
) -> dict[str, Any]:
    """Return the finish fields of a choice; null while it goes on."""
    return {"finish_reason": reason, "stop_reason": stop_reason}


def _token_ids(tokens: Sequence[ChosenToken], options: ReplyOptions) -> dict[str, Any]:
    """Return the field with token ids, if it was asked for."""
    return {"token_ids": [t.token_id for t in tokens]} if options.return_token_ids else {}


def _tells_engines(options: ReplyOptions) -> bool:
    return options.return_token_ids and options.x_dualpace


def _engines(tokens: Sequence[ChosenToken]) -> dict[str, Any]:
    """Return which engine made each of the tokens that `token_ids` names."""
    return {"engines": [token.engine.name.lower() for token in tokens]}


def prompt_logprobs(choice: Choice, options: ReplyOptions) -> list[dict[str, Any] | None]:
    """Return what the prompt's tokens were worth, by token id, as vLLM does; the first is null."""
    token_ids = choice.plan.prompt.token_ids
    entries: list[dict[str, Any] | None] = [None]
    for token_id, scores in zip(token_ids[1:], choice.scores, strict=True):
        listed: dict[int, tuple[float, int | None]] = {
            top: (logprob, place)
            for place, (top, logprob) in enumerate(scores.top[: options.prompt_logprobs], 1)
        }
        listed = {token_id: (scores.chosen, scores.rank), **listed}
        entries.append(
            {
                str(listed_id): {
                    "logprob": finite(logprob),
                    "rank": rank,
                    "decoded_token": options.label(listed_id),
                }
                for listed_id, (logprob, rank) in listed.items()
            }
        )
    return entries


def listed_token(token: ChosenToken, options: ReplyOptions) -> dict[str, Any]:
    """Return a generated token with its log-probability and the likeliest alternatives."""
    logprobs = token.logprobs
    assert logprobs is not None, "the engine was asked for log-probabilities"

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": options.label(token_id),
            "logprob": finite(logprob),
            "bytes": list(options.token_text.piece(token_id)),
        }

    top = [entry(token_id, logprob) for token_id, logprob in logprobs.top[: options.logprobs]]
    return {**entry(token.token_id, logprobs.chosen), "top_logprobs": top}


def joined(deltas: Sequence[Delta]) -> Delta:
    """Return all deltas of a choice as one."""
    text = "".join(delta.text for delta in deltas)
    tokens = tuple(token for delta in deltas for token in delta.tokens)
    return Delta(text, tokens, tuple(call for delta in deltas for call in delta.calls))


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can carry."""
    return max(logprob, _LEAST_LOGPROB)
