"""Fields that say what form the generated text must have: `response_format`, `structured_outputs`.

At most one form may be asked for. What a form allows is not known here; `output_grammar` writes it.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dualpace.gateway.errors import shorten
from dualpace.gateway.protocol.fields import Flag, StrictModel, fault

MAX_CHOICES = 1024
MAX_GRAMMAR_CHARACTERS = 1 << 16
"""Of a regular expression or grammar. A schema is bounded by the room that requests have."""

_FORMATS = ("text", "json_object", "json_schema")


def _schema(value: object) -> object:
    if isinstance(value, dict | bool) or value is None:
        return value
    raise fault("must be a JSON schema: an object", "invalid_type")


Schema = Annotated[
    dict[str, Any] | bool | None,
    BeforeValidator(_schema, json_schema_input_type=dict[str, Any] | bool | None),
]


class JsonSchema(StrictModel):
    """A named schema, as OpenAI's clients send it. Output always follows it, `strict` or not."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    definition: Schema = Field(default=None, alias="schema")
    strict: bool | None = None


def _format(value: object) -> object:
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind not in _FORMATS:
        names = ", ".join(_FORMATS)
        raise fault(f"type must be one of {names} (got {shorten(kind, 40)})", "unsupported_value")
    if (kind == "json_schema") != (value.get("json_schema") is not None):
        raise fault("json_schema goes with type json_schema, and with no other")
    return value


class _ResponseFormat(StrictModel):
    """OpenAI's way to ask for a form."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


ResponseFormat = Annotated[_ResponseFormat, BeforeValidator(_format)]


def _schema_or_text(value: object) -> object:
    """A schema may come as JSON text; `output_grammar` reads it."""
    if isinstance(value, str | dict | bool) or value is None:
        return value
    raise fault("must be a JSON schema: an object, or its text", "invalid_type")


def _choices(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, list):
        raise fault("must be a list of strings", "invalid_type")
    if not value or len(value) > MAX_CHOICES:
        raise fault(f"must have 1 to {MAX_CHOICES} strings")
    for choice in value:
        if not isinstance(choice, str):
            raise fault("must be a list of strings", "invalid_type")
        if not choice:
            raise fault("must not hold an empty string")
    return tuple(dict.fromkeys(value))


class StructuredOutputs(StrictModel):
    """vLLM's way to ask for a form: exactly one of these."""

    json_: Annotated[
        str | dict[str, Any] | bool | None,
        BeforeValidator(_schema_or_text, json_schema_input_type=str | dict[str, Any] | None),
    ] = Field(default=None, alias="json")
    regex: str | None = Field(default=None, min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)
    choice: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_choices, json_schema_input_type=list[str] | None),
    ] = None
    grammar: str | None = Field(default=None, min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)
    json_object: Flag = False
    disable_any_whitespace: Flag = False

    def kinds(self) -> list[str]:
        """Return the names of the forms that are asked for."""
        given = {
            "json": self.json_,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
            "json_object": self.json_object or None,
        }
        return [name for name, value in given.items() if value is not None]
