"""Fields of the dialect that change the output and are not supported.

Each has values under which it changes nothing; these pass. Any other value is refused: an answer
that silently ignores what was asked for is worse than none. Fields in neither table nor model are
accepted and left alone, as vLLM does.
"""

import logging
from collections.abc import Mapping

from dualpace.gateway.errors import ApiError, invalid, shorten

log = logging.getLogger(__name__)

_MAX_LOGGED_NAMES = 20

Neutral = dict[str, tuple[object, ...]]
"""By field: the values that change nothing, besides null."""

_BOTH: Neutral = {
    "bad_words": ([],),
    "best_of": (),
    "chat_template": (),
    "detokenize": (True,),
    "early_stopping": (False,),
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "prompt_embeds": (),
    "spaces_between_special_tokens": (True, False),
    "structural_tag": (),
    "thinking_token_budget": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}

CHAT: Neutral = _BOTH | {
    "audio": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "mm_processor_kwargs": ({},),
    "prediction": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}

COMPLETIONS: Neutral = _BOTH | {
    "documents": ([],),
    "suffix": ("",),
}

RESPONSES: Neutral = _BOTH | {
    "background_options": ({},),
    "context_management": ([],),
    "conversation": (),
    "max_completion_tokens": (),
    "max_tokens": (),
    "moderation": (),
    "n": (1,),
    "prompt": (),
    "response_format": (),
    "structured_outputs": (),
    "truncation": ("disabled",),
}


def refuse_unsupported(body: Mapping[str, object], neutral: Neutral) -> None:
    """Raise ApiError 400 for the first field that would change the output, but could not."""
    for name, value in body.items():
        if value is None or not (name in neutral or name.startswith("guided_")):
            continue
        if name == "best_of" and _same(value, body.get("n") or 1):
            continue
        if not any(_same(value, harmless) for harmless in neutral.get(name, ())):
            raise _unsupported(name, value)


def note_unknown(
    body: Mapping[str, object], known: Mapping[str, object], neutral: Neutral, *, strict: bool
) -> None:
    """Write the names of fields that nothing reads to the debug log; never their values.

    Raises ApiError 400 for the first of them if they are to be refused.
    """
    unknown = sorted(
        shorten(name, 64) for name in body if name not in known and name not in neutral
    )
    if unknown and strict:
        name = next(name for name in body if name not in known and name not in neutral)
        raise invalid(name[:64], "is not known here", "unsupported_parameter")
    if unknown:
        log.debug("fields ignored: %s", ", ".join(unknown[:_MAX_LOGGED_NAMES]))


def _same(value: object, harmless: object) -> bool:
    return isinstance(value, bool) == isinstance(harmless, bool) and value == harmless


def _unsupported(name: str, value: object) -> ApiError:
    shown = f" (got {shorten(value)})" if isinstance(value, bool | int | float) else ""
    instead = "use structured_outputs" if name.startswith("guided_") else "leave it out"
    return invalid(name[:64], f"is not supported{shown}; {instead}", "unsupported_parameter")
