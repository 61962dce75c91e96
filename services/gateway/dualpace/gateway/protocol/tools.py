"""Fields about tools: which functions the model may call, and whether it must."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from dualpace.gateway.errors import shorten
from dualpace.gateway.protocol.fields import StrictModel, fault

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class Function(StrictModel):
    """A function of the client's. `parameters` is a JSON schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        fields = self.function.model_dump(exclude={"strict"}, exclude_none=True)
        return {"type": "function", "function": fields}


def _tools(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, list):
        raise fault("must be a list of tools", "invalid_type")
    if not value or len(value) > MAX_TOOLS:
        raise fault(f"must have 1 to {MAX_TOOLS} tools; leave it out to have none")
    names = set()
    for tool in value:
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            if not _NAME.fullmatch(name):
                raise fault(f"{shorten(name, 80)} is no name of 1 to 64 letters, digits, _, - or .")
            if name in names:
                raise fault(f"{shorten(name, 80)} is listed twice")
            names.add(name)
    return value


Tools = Annotated[
    list[Tool] | None,
    BeforeValidator(_tools, json_schema_input_type=list[Tool] | None),
]


def _tool_choice(value: object) -> object:
    """Return none, auto, required, or the named function as `function:<name>`."""
    if value is None or value in ("none", "auto", "required"):
        return value
    if not isinstance(value, dict):
        raise fault("must be none, auto, required, or an object that names a function")
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if value.get("type") != "function" or not isinstance(name, str):
        raise fault('must be {"type": "function", "function": {"name": …}} to name a function')
    return f"{NAMED}{name}"


NAMED = "function:"

ToolChoice = Annotated[
    str | None,
    BeforeValidator(_tool_choice, json_schema_input_type=str | dict[str, Any] | None),
]
