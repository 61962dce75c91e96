"""Objects of /v1/chat/completions: `chat.completion` and `chat.completion.chunk`."""

from collections.abc import Sequence
from typing import Any

from dualpace.gateway.choices import Choice, ChosenToken, Delta
from dualpace.gateway.replies.common import (
    ReplyOptions,
    ending,
    finish_fields,
    going_on,
    joined,
    listed_token,
    prompt_logprobs,
)


class ChatReply:
    """Builds the objects of one chat answer."""

    def __init__(self, options: ReplyOptions) -> None:
        self.options = options

    def opening(self, choice: Choice) -> dict[str, Any]:
        """Return the chunk that names the role."""
        plan = choice.plan
        fields = {
            "index": plan.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            **finish_fields(),
        }
        chunk = self._chunk([fields])
        if self.options.return_token_ids and plan.index == 0:
            chunk["prompt_token_ids"] = list(plan.prompt.token_ids)
        return chunk

    def delta(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """Return the chunk for more text."""
        fields = {
            "index": choice.plan.index,
            "delta": _content(delta),
            "logprobs": self._logprobs(delta.tokens),
            **going_on(delta.tokens, self.options),
        }
        return self._chunk([fields])

    def closing(self, choice: Choice) -> dict[str, Any]:
        """Return the chunk with the finish reason."""
        tokens = choice.remaining()
        fields = {
            "index": choice.plan.index,
            "delta": {},
            "logprobs": self._logprobs(tokens) if tokens else None,
            **ending(choice, tokens, self.options),
        }
        return self._chunk([fields])

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        """Return the chunk with usage alone."""
        return self._chunk([]) | {"usage": usage}

    def whole(
        self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]], usage: dict[str, int]
    ) -> dict[str, Any]:
        """Return the `chat.completion` object."""
        body = self.options.head("chat.completion") | {
            "choices": [
                self._whole_choice(choice, joined(shown))
                for choice, shown in zip(choices, deltas, strict=True)
            ],
            "usage": usage,
            "system_fingerprint": None,
        }
        if self.options.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(choices[0], self.options)
        if self.options.return_token_ids:
            body["prompt_token_ids"] = list(choices[0].plan.prompt.token_ids)
        return body

    def _whole_choice(self, choice: Choice, shown: Delta) -> dict[str, Any]:
        return {
            "index": choice.plan.index,
            "message": _message(shown),
            "logprobs": self._logprobs(shown.tokens),
            **ending(choice, shown.tokens, self.options),
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self.options.head("chat.completion.chunk")
        return head | {"choices": choices, "system_fingerprint": None}

    def _logprobs(self, tokens: Sequence[ChosenToken]) -> dict[str, Any] | None:
        if self.options.logprobs is None:
            return None
        return {"content": [listed_token(token, self.options) for token in tokens], "refusal": None}


def _content(delta: Delta) -> dict[str, Any]:
    content: dict[str, Any] = {"content": delta.text} if delta.text or not delta.calls else {}
    if delta.calls:
        content["tool_calls"] = [{"index": c.index, **c.call.fields()} for c in delta.calls]
    return content


def _message(shown: Delta) -> dict[str, Any]:
    content = None if shown.calls and not shown.text else shown.text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if shown.calls:
        message["tool_calls"] = [c.call.fields() for c in shown.calls]
    return message
