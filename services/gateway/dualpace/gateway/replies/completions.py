"""Objects of /v1/completions: `text_completion`, both whole and as chunks."""

from collections.abc import Sequence
from typing import Any

from dualpace.gateway.choices import Choice, ChosenToken, Delta
from dualpace.gateway.planning import ChoicePlan
from dualpace.gateway.prompts import TokenizedPrompt
from dualpace.gateway.replies.common import (
    ReplyOptions,
    ending,
    finish_fields,
    finite,
    joined,
    token_ids,
)


class CompletionReply:
    """Builds the objects of one completion. With `echo`, a text starts with its prompt."""

    def __init__(self, options: ReplyOptions, *, echo: bool) -> None:
        self.options = options
        self._echo = echo

    def opening(self, plan: ChoicePlan) -> dict[str, Any] | None:
        """Return the chunk with the prompt, where it is to be seen."""
        if not self._echo and not self.options.return_token_ids:
            return None
        fields = {
            "index": plan.index,
            "text": self._prompt_text(plan.prompt),
            "logprobs": None,
            **finish_fields(None),
            **self._prompt_ids(plan.prompt),
        }
        return self._object([fields])

    def delta(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """Return the chunk for more text."""
        fields = {
            "index": choice.plan.index,
            "text": delta.text,
            "logprobs": self._logprobs(delta.tokens),
            **finish_fields(None),
            **token_ids(delta.tokens, self.options),
        }
        return self._object([fields])

    def closing(self, choice: Choice) -> dict[str, Any]:
        """Return the chunk with the finish reason."""
        tokens = choice.remaining()
        fields = {
            "index": choice.plan.index,
            "text": "",
            "logprobs": self._logprobs(tokens) if tokens else None,
            **ending(choice, self.options),
            **token_ids(tokens, self.options),
        }
        return self._object([fields])

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        """Return the chunk with usage alone."""
        return self._object([]) | {"usage": usage}

    def whole(
        self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]], usage: dict[str, int]
    ) -> dict[str, Any]:
        """Return the `text_completion` object."""
        built = [
            self._whole_choice(choice, joined(shown))
            for choice, shown in zip(choices, deltas, strict=True)
        ]
        return self._object(built) | {"usage": usage}

    def _whole_choice(self, choice: Choice, shown: Delta) -> dict[str, Any]:
        prompt = choice.plan.prompt
        return {
            "index": choice.plan.index,
            "text": self._prompt_text(prompt) + shown.text,
            "logprobs": self._logprobs(shown.tokens),
            **ending(choice, self.options),
            **self._prompt_ids(prompt),
            **token_ids(shown.tokens, self.options),
        }

    def _object(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self.options.head("text_completion") | {"choices": choices}

    def _prompt_text(self, prompt: TokenizedPrompt) -> str:
        if not self._echo:
            return ""
        return (
            self.options.token_text.text(prompt.token_ids) if prompt.text is None else prompt.text
        )

    def _prompt_ids(self, prompt: TokenizedPrompt) -> dict[str, Any]:
        return {"prompt_token_ids": list(prompt.token_ids)} if self.options.return_token_ids else {}

    def _logprobs(self, tokens: Sequence[ChosenToken]) -> dict[str, Any] | None:
        if self.options.logprobs is None:
            return None
        chosen = [finite(_of(token)) for token in tokens]
        return {
            "tokens": [self.options.token_text.label(token.token_id) for token in tokens],
            "token_logprobs": chosen,
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": [token.text_offset for token in tokens],
        }

    def _top(self, token: ChosenToken) -> dict[str, float]:
        """Return the likeliest tokens and the chosen one; of tokens that look alike, one."""
        assert token.logprobs is not None
        pairs = [
            *token.logprobs.top[: self.options.logprobs],
            (token.token_id, token.logprobs.chosen),
        ]
        top: dict[str, float] = {}
        for token_id, logprob in pairs:
            top.setdefault(self.options.token_text.label(token_id), finite(logprob))
        return top


def _of(token: ChosenToken) -> float:
    assert token.logprobs is not None, "the engine was asked for log-probabilities"
    return token.logprobs.chosen
