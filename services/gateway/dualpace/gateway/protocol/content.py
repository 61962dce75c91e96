"""Content of messages: a string, or parts of text, which are joined by newlines.

Templates get one string; parts that are no text are refused by name.
"""

from collections.abc import Callable, Mapping

from dualpace.gateway.errors import shorten
from dualpace.gateway.protocol.fields import fault

MAX_MESSAGES = 4096
"""Of a conversation, tool calls counted as well."""


def content_of(kinds: Mapping[str, str]) -> Callable[[object], object]:
    """Return a validator of content. `kinds`: types of text parts, and the field with the text."""

    def joined(value: object) -> object:
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise fault("must be a string or a list of text parts", "invalid_type")
        if not value:
            raise fault("must not be an empty list")
        return "\n".join(_part_text(index, part, kinds) for index, part in enumerate(value))

    return joined


def _part_text(index: int, part: object, kinds: Mapping[str, str]) -> str:
    if not isinstance(part, dict):
        raise fault(f"part {index} must be an object", "invalid_type")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        allowed = ", ".join(f"'{known}'" for known in kinds)
        verb = "is" if len(kinds) == 1 else "are"
        raise fault(
            f"part {index} has type {shorten(kind, 40)}; only {allowed} {verb} supported",
            "unsupported_value",
        )
    text = part.get(kinds[kind])
    if not isinstance(text, str):
        raise fault(f"part {index} needs '{kinds[kind]}', a string", "invalid_type")
    return text
