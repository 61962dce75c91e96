"""The served model as the gateway needs it: names, tokenizer, template, defaults. No files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time

from tokenizers import Tokenizer

from dualpace.core.errors import CheckpointError
from dualpace.gateway.text.chat_template import ChatTemplate
from dualpace.gateway.text.token_text import TokenText, read_token_text
from dualpace.gateway.tools.dialect import Dialect, dialect_named


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What a request gets that names nothing: the publisher's value, or else the API's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        checks = {
            "temperature": math.isfinite(self.temperature) and self.temperature >= 0,
            "top_p": 0 < self.top_p <= 1,
            "top_k": self.top_k >= 0,
            "min_p": 0 <= self.min_p <= 1,
            "repetition_penalty": 0 < self.repetition_penalty < math.inf,
        }
        for name, good in checks.items():
            if not good:
                value = getattr(self, name)
                raise CheckpointError(
                    f"the model's generation defaults: {name} = {value} is out of range"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model under one or several names."""

    names: tuple[str, ...]
    tokenizer: Tokenizer
    token_text: TokenText
    longest_token: int
    """Characters of the longest token; bounds from below how many tokens a text has."""
    template: ChatTemplate | None
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults
    tool_dialect: Dialect | None = None
    """How it calls tools; None: in a way that is not known here."""
    fingerprint: bytes = b""
    """Identifies config and weights; engines must serve the same."""
    created: int = field(default_factory=lambda: int(time()))
    """Unix time at which serving began."""


def served_model(
    names: tuple[str, ...],
    tokenizer: Tokenizer,
    *,
    chat_template: str | None = None,
    special_tokens: Mapping[str, str] | None = None,
    eos_token_ids: tuple[int, ...] = (),
    defaults: SamplingDefaults | None = None,
    tool_dialect: str = "auto",
    fingerprint: bytes = b"",
) -> ServedModel:
    """Put a model together. Raises CheckpointError for a template or decoder it cannot use."""
    assert names
    tokenizer.no_truncation()
    tokenizer.no_padding()
    table = read_token_text(tokenizer)
    return ServedModel(
        names=names,
        tokenizer=tokenizer,
        token_text=table,
        longest_token=max(len(piece) for piece in table.pieces),
        template=ChatTemplate(chat_template, special_tokens or {}) if chat_template else None,
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
        defaults=defaults or SamplingDefaults(),
        tool_dialect=dialect_named(tool_dialect, chat_template),
        fingerprint=fingerprint,
    )
