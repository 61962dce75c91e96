"""Typed access to a JSON object or key-value header; errors name the file and the field.

A field that is null counts as absent, as transformers reads it, except where a null has a meaning
of its own (`nullable_integer`). It knows nothing of models.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dualpace.core.errors import CheckpointError

T = TypeVar("T", int, str)
_KINDS = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
_PLURALS: dict[type, str] = {int: "whole numbers", str: "strings"}


def load_text(path: Path) -> str:
    """Return the UTF-8 text in a file. Raises CheckpointError that names the file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 text: {error}") from None


def load_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises CheckpointError that names the file."""
    text = load_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # not JSON, or a number of too many digits
        raise CheckpointError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: a JSON object is needed, found {describe(value)}")
    return value


def describe(value: object) -> str:
    """Return a short text of a value and its JSON type, for error messages."""
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{text} ({_KINDS.get(type(value), type(value).__name__)})"


class Fields:
    """Reads fields of one object; `where` names it in errors."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        """Return the value as it is, or None."""
        return self._values.get(name)

    def integer(
        self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int | None = None
    ) -> int:
        """Return a whole number within limits; without a default the field is required."""
        value = self._present(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        wanted = f"a whole number of at least {minimum}"
        if maximum is not None:
            wanted = f"a whole number from {minimum} to {maximum}"
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.fail(name, value, wanted)
        if maximum is not None and value > maximum:
            self.fail(name, value, wanted)
        return value

    def nullable_integer(self, name: str, default: int | None) -> int | None:
        """Return a whole number of at least 1.

        Null means None, and `default` holds only if the field is absent.
        """
        if name not in self._values:
            return default
        return None if self._values[name] is None else self.integer(name)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive finite number; without a default the field is required."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(name, value, "a positive number")
        if not (math.isfinite(value) and value > 0):
            self.fail(name, value, "a positive number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """Return a positive finite number, or None where there is none."""
        return self.number(name) if name in self else None

    def boolean(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self._present(name, default)
        if not isinstance(value, bool):
            self.fail(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string; without a default the field is required."""
        value = self._present(name, default)
        if not isinstance(value, str):
            self.fail(name, value, "a string")
        return value

    def items(self, name: str, kind: type[T], length: int | None = None) -> list[T] | None:
        """Return a list of whole numbers or strings, or None where there is none."""
        return self._list(name, (kind,), _PLURALS[kind], length)

    def numbers(self, name: str, length: int) -> list[float] | None:
        """Return a list of numbers of any kind, or None where there is none."""
        values = self._list(name, (int, float), "numbers", length)
        return None if values is None else [float(value) for value in values]

    def sub(self, name: str) -> "Fields | None":
        """Return a nested object, or None where there is none."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(name, value, "an object")
        return Fields(value, f"{self.where}, {name}")

    def fail(self, name: str, value: object, wanted: str) -> NoReturn:
        """Raise the error for a field of the wrong type or range."""
        if name not in self._values:
            raise CheckpointError(f"{self.where}: field {name!r} is missing; {wanted} is needed")
        raise CheckpointError(
            f"{self.where}: field {name!r} is {describe(value)}; {wanted} is needed"
        )

    def _present(self, name: str, default: object) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def _list(
        self, name: str, kinds: tuple[type, ...], plural: str, length: int | None
    ) -> list[Any] | None:
        value = self._values.get(name)
        if value is None:
            return None
        valid = isinstance(value, list) and (length is None or len(value) == length)
        if not valid or not all(isinstance(v, kinds) and not isinstance(v, bool) for v in value):
            count = "" if length is None else f"{length} "
            self.fail(name, value, f"a list of {count}{plural}")
        return list(value)
