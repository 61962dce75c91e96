"""A call that a model made, and what reads calls out of text that arrives in pieces."""

import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is the text of a JSON object, whatever the model wrote around it."""

    name: str
    arguments: str
    call_id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def fields(self) -> dict[str, Any]:
        """Return the call as answers show it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


Piece = str | ToolCall


class CallParser(Protocol):
    """Reads one text. What is no call stays text, malformed calls included: nothing is lost."""

    def push(self, text: str) -> list[Piece]:
        """Take more text; return what is certain by now."""
        ...

    def finish(self) -> list[Piece]:
        """Return what was held back: the text is over."""
        ...


def read_call(value: object, arguments_key: str) -> ToolCall | None:
    """Return the call that an object describes, or None if it describes none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get(arguments_key, {})
    if not isinstance(arguments, dict):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):  # a number that is too large, or nested too deep
        return None
    return ToolCall(value["name"], text)


def load_json(text: str) -> object:
    """Return the JSON value of a text; None where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
