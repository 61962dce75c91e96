"""Tells a model of tools where its chat template has no way to: in the system message.

Calls and results of earlier turns are written into messages in the form that is asked for here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dualpace.gateway.tools.hermes import CLOSE, OPEN

_INTRODUCTION = "You can call functions. Each line between the tags describes one of them:"
_FORM = (
    "To call a function, write its name and a JSON object of its arguments like this, "
    f'once for each call:\n{OPEN}\n{{"name": "function-name", "arguments": {{}}}}\n{CLOSE}'
)


def with_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return messages, as templates take them, that tell of the tools, if there are any."""
    told = [_plain(message) for message in messages]
    if not tools:
        return told
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = f"{_INTRODUCTION}\n<tools>\n{described}\n</tools>\n{_FORM}"
    if told and told[0]["role"] == "system":
        told[0]["content"] = f"{told[0]['content']}\n\n{text}"
    else:
        told.insert(0, {"role": "system", "content": text})
    return told


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without fields that only templates with tools know."""
    content = message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [
        f"{OPEN}\n{json.dumps(call['function'], ensure_ascii=False)}\n{CLOSE}"
        for call in message.get("tool_calls", ())
    ]
    plain = {"role": message["role"], "content": "\n".join([*filter(None, [content]), *calls])}
    return plain | {k: v for k, v in message.items() if k == "name"}
