"""Objects of /v1/completions: `text_completion`, both whole and as chunks."""

from collections.abc import Sequence
from typing import Any

from dualpace.core.messages import TokenLogprobs
from dualpace.gateway.choices import Choice, ChosenToken, Delta
from dualpace.gateway.replies.common import (
    ReplyOptions,
    ending,
    finish_fields,
    finite,
    going_on,
    joined,
    prompt_logprobs,
)
from dualpace.gateway.text.detokenizer import text_offsets
from dualpace.gateway.text.prompts import TokenizedPrompt


class CompletionReply:
    """Builds the objects of one completion. With `echo`, a text starts with its prompt."""

    def __init__(self, options: ReplyOptions, *, echo: bool) -> None:
        self.options = options
        self._echo = echo

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        """Return the chunk with the prompt, where it is to be seen."""
        if not self._echo and not self.options.return_token_ids:
            return None
        prompt = choice.plan.prompt
        fields = {
            "index": choice.plan.index,
            "text": self._prompt_text(prompt),
            "logprobs": self._logprobs((), choice) if self._echo else None,
            **finish_fields(),
            **self._prompt_ids(prompt),
        }
        return self._object([fields])

    def delta(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """Return the chunk for more text."""
        fields = {
            "index": choice.plan.index,
            "text": delta.text,
            "logprobs": self._logprobs(delta.tokens, choice, with_prompt=False),
            **going_on(delta.tokens, self.options),
        }
        return self._object([fields])

    def closing(self, choice: Choice) -> dict[str, Any]:
        """Return the chunk with the finish reason."""
        tokens = choice.remaining()
        fields = {
            "index": choice.plan.index,
            "text": "",
            "logprobs": self._logprobs(tokens, choice, with_prompt=False) if tokens else None,
            **ending(choice, tokens, self.options),
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
            "logprobs": self._logprobs(shown.tokens, choice),
            **ending(choice, shown.tokens, self.options),
            **self._prompt_scores(choice),
            **self._prompt_ids(prompt),
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

    def _prompt_scores(self, choice: Choice) -> dict[str, Any]:
        if self.options.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(choice, self.options)}

    def _logprobs(
        self, tokens: Sequence[ChosenToken], choice: Choice, *, with_prompt: bool = True
    ) -> dict[str, Any] | None:
        """Return the four lists, about the shown prompt's tokens and then these."""
        if self.options.logprobs is None:
            return None
        listed: list[tuple[int, int, TokenLogprobs | None]] = []
        shift = 0
        if self._echo:
            prompt = choice.plan.prompt
            shift = len(self._prompt_text(prompt))
            if with_prompt:
                offsets = text_offsets(prompt.token_ids, self.options.token_text)
                listed.extend(zip(prompt.token_ids, offsets, (None, *choice.scores), strict=True))
        listed.extend((t.token_id, t.text_offset + shift, t.logprobs) for t in tokens)
        return {
            "tokens": [self.options.label(token_id) for token_id, _, _ in listed],
            "token_logprobs": [None if lp is None else finite(lp.chosen) for _, _, lp in listed],
            "top_logprobs": [lp and self._top(token_id, lp) for token_id, _, lp in listed],
            "text_offset": [offset for _, offset, _ in listed],
        }

    def _top(self, chosen_id: int, logprobs: TokenLogprobs) -> dict[str, float]:
        """Return the likeliest tokens and the chosen one; of tokens that look alike, one."""
        pairs = [*logprobs.top[: self.options.logprobs], (chosen_id, logprobs.chosen)]
        top: dict[str, float] = {}
        for token_id, logprob in pairs:
            top.setdefault(self.options.label(token_id), finite(logprob))
        return top
