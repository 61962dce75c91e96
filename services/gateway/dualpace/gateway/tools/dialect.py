"""The ways in which models call tools, and which one a chat template speaks."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dualpace.gateway.protocol.tools import Tool
from dualpace.gateway.tools.calls import CallParser
from dualpace.gateway.tools.hermes import CLOSE, OPEN, HermesParser
from dualpace.gateway.tools.llama3 import Llama3Parser

_MAX_CALLS = 16
"""Calls of an answer that must call: a model that never ends would go on for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One way of calling tools: `prefix`, an object, `suffix`."""

    name: str
    parser: Callable[[], CallParser]
    arguments_key: str
    prefix: str = ""
    suffix: str = ""
    separator: str
    tags: tuple[str, ...] = ()
    """Tokens that must show in the text even where the tokenizer has them as special ones."""

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        """Return a Lark grammar of one call or several to these tools, and nothing else."""
        calls = " | ".join(f"call{index}" for index in range(len(tools)))
        more = f" ({_literal(self.separator)} call){{0,{_MAX_CALLS - 1}}}" if parallel else ""
        rules = [f"start: call{more}", f"call: {calls}"]
        for index, tool in enumerate(tools):
            name = json.dumps(tool.function.name)
            head = f'{self.prefix}{{"name": {name}, "{self.arguments_key}": '
            tail = f"}}{self.suffix}"
            schema = tool.function.parameters or {"type": "object", "additionalProperties": False}
            rules.append(f"call{index}: {_literal(head)} arguments{index} {_literal(tail)}")
            rules.append(f"arguments{index}: %json {json.dumps(schema)}")
        return "\n".join(rules)


HERMES = Dialect(
    name="hermes",
    parser=HermesParser,
    arguments_key="arguments",
    prefix=f"{OPEN}\n",
    suffix=f"\n{CLOSE}",
    separator="\n",
    tags=(OPEN, CLOSE),
)

LLAMA3 = Dialect(
    name="llama3_json", parser=Llama3Parser, arguments_key="parameters", separator="; "
)

_DIALECTS = {dialect.name: dialect for dialect in (HERMES, LLAMA3)}

DIALECT_NAMES = ("auto", *_DIALECTS)


def dialect_named(name: str, template: str | None) -> Dialect | None:
    """Return a dialect by name; `auto` looks at the template. None: it calls in some other way.

    A template that says nothing of tools gets them by a text of our own (`tools.prompt`), which
    asks for Hermes' form.
    """
    if name != "auto":
        return _DIALECTS[name]
    if template is None or "tools" not in template or OPEN in template:
        return HERMES
    if "<|python_tag|>" in template or '"parameters": dictionary' in template:
        return LLAMA3
    return None


def _literal(text: str) -> str:
    return json.dumps(text)
