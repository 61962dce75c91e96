"""Writes the grammar that the generated text must follow, in the format of llguidance.

Nothing is compiled here: the engines do that, over the model's vocabulary, and refuse what they
cannot. Only notations are translated, which for a long grammar takes a while: call it in a thread.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from dualpace.gateway.errors import invalid
from dualpace.gateway.protocol.chat import ChatRequest
from dualpace.gateway.protocol.generation import GenerationRequest
from dualpace.gateway.protocol.outputs import StructuredOutputs
from dualpace.gateway.protocol.tools import NAMED
from dualpace.gateway.tools.dialect import Dialect

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_JSON_OPTIONS: "JsonCompileOptions" = {
    # Without a bound, a model that has nothing to say writes blank space for ever.
    "whitespace_pattern": r"[ \n\t]{0,24}",
    # `oneOf` as `anyOf`: what fits several alternatives at once is let through.
    "coerce_one_of": True,
}
_COMPACT_OPTIONS: "JsonCompileOptions" = {"whitespace_flexible": False, "coerce_one_of": True}


@dataclass(frozen=True, slots=True)
class OutputGrammar:
    """A grammar, and the field that asked for it."""

    text: str
    param: str


def output_grammar(request: GenerationRequest) -> OutputGrammar | None:
    """Return the grammar of the form that a request asks for. Raises ApiError 400."""
    if request.structured_outputs is not None:
        return OutputGrammar(_structured(request.structured_outputs), "structured_outputs")
    asked = request.response_format
    if asked is None or asked.type == "text":
        return None
    definition = {"type": "object"} if asked.json_schema is None else asked.json_schema.definition
    return OutputGrammar(_json(definition, "response_format"), "response_format")


def call_grammar(request: ChatRequest, dialect: Dialect) -> OutputGrammar | None:
    """Return the grammar of calls where the model must call a tool."""
    choice = request.tool_choice
    if not request.tools or choice is None or choice in ("auto", "none"):
        return None
    name = choice.removeprefix(NAMED)
    tools = [tool for tool in request.tools if choice == "required" or tool.function.name == name]
    lark = dialect.grammar(tools, parallel=request.parallel_tool_calls and choice == "required")
    return OutputGrammar(LLMatcher.grammar_from_lark(lark), "tools")


def _structured(asked: StructuredOutputs) -> str:
    param = "structured_outputs"
    if asked.json_object:
        return _json({"type": "object"}, param, compact=asked.disable_any_whitespace)
    if asked.json_ is not None:
        given = asked.json_
        definition = _parsed(given, param) if isinstance(given, str) else given
        return _json(definition, param, compact=asked.disable_any_whitespace)
    if asked.regex is not None:
        return LLMatcher.grammar_from_regex(asked.regex)
    if asked.choice is not None:
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, asked.choice)))
    assert asked.grammar is not None, "the rules see to it that there is one form"
    return _any_notation(asked.grammar, param)


def _json(definition: Mapping[str, Any] | bool | None, param: str, *, compact: bool = False) -> str:
    if definition is None or definition is True:
        definition = {}
    if definition is False:
        raise invalid(param, "its schema is false, which allows nothing")
    return LLMatcher.grammar_from_json_schema(
        dict(definition), overrides=_COMPACT_OPTIONS if compact else _JSON_OPTIONS
    )


def _parsed(text: str, param: str) -> Mapping[str, Any]:
    try:
        definition = json.loads(text)
    except (ValueError, RecursionError):
        definition = None
    if not isinstance(definition, dict):
        raise invalid(param, "json must be a JSON schema: an object, or its text")
    return definition


def _any_notation(text: str, param: str) -> str:
    """Return a grammar that is given in Lark's notation or in llama.cpp's GBNF."""
    try:
        lark = any_to_lark(text)
    except Exception as error:  # noqa: BLE001 - the converter's own, and whatever it trips over
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise invalid(param, f"the grammar does not parse: {reason[0][:200]}") from None
    return LLMatcher.grammar_from_lark(lark)
