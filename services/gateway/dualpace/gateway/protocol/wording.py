"""What is said of a value that does not fit its field, in the words of JSON and not of Python."""

import json
from collections.abc import Mapping
from typing import Any

from dualpace.gateway.errors import shorten

_MAX_MESSAGE = 400
_MAX_STRING = 40

_PHRASES = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "string_unicode": "must be text that UTF-8 can hold",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be one of {expected}",
    "enum": "must be one of {expected}",
}


def describe(fault: Mapping[str, Any]) -> str:
    """Say what one of pydantic's faults is, and what was given if that is short."""
    phrase = _PHRASES.get(fault["type"])
    if phrase is None:
        text = str(fault["msg"])[:_MAX_MESSAGE]
        text = text[:1].lower() + text[1:]
    else:
        text = phrase.format_map(fault.get("ctx", {}))
        text = text.replace(" 1 entries", " 1 entry").replace(" 1 characters", " 1 character")
    return text + _given(fault["input"])


def _given(value: object) -> str:
    if value is None or isinstance(value, bool):
        return f" (got {json.dumps(value)})"
    if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _MAX_STRING):
        return f" (got {shorten(value)})"
    return ""
