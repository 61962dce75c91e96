"""Settings are frozen dataclasses.

This turns flags and DUALPACE_* variables into one, and names what is wrong.

A field becomes the flag `--field-name` and the variable `PREFIX_FIELD_NAME`; a flag wins over a
variable, a variable over the default. An unknown flag, or an unknown variable under the prefix,
stops the start: a setting that is silently dropped is worse than no setting.
"""

import argparse
import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from dualpace.core.errors import SettingsError

T = TypeVar("T")


def setting(
    help_text: str, *, default: Any = dataclasses.MISSING, choices: Sequence[str] = ()
) -> Any:
    """Declare a settings field.

    Its sentence for people, its default (none: required), its allowed values.
    """
    return dataclasses.field(
        default=default, metadata={"help": help_text, "choices": tuple(choices)}
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message} (see --help)")


def _refuse_unknown(flags: Sequence[str], known: Sequence[str]) -> None:
    """Name the first unknown flag, and the known one that it was perhaps meant to be."""
    for flag in flags:
        name = flag.split("=", 1)[0]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else " (see --help)"
        raise SettingsError(f"unknown argument {name}{hint}")


def parse_settings(
    cls: type[T], argv: Sequence[str], environ: Mapping[str, str], *, program: str, prefix: str
) -> T:
    """Build `cls` from flags and environment.

    Raises SettingsError naming the flag or variable at fault.
    """
    assert dataclasses.is_dataclass(cls)
    types_of = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    parser = _Parser(prog=program, description=cls.__doc__, allow_abbrev=False)
    for field in fields:
        default = (
            "required" if field.default is dataclasses.MISSING else f"default {field.default!r}"
        )
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            metavar=field.name.upper(),
            default=None,
            # A switch may stand alone.
            nargs="?" if types_of[field.name] is bool else None,
            const="true" if types_of[field.name] is bool else None,
            help=f"{field.metadata['help']} ({default})".replace("%", "%%"),
        )
    parsed, unknown = parser.parse_known_args(list(argv))
    _refuse_unknown(unknown, ["--" + field.name.replace("_", "-") for field in fields])
    flags = vars(parsed)
    known = {prefix + field.name.upper() for field in fields}
    for name in environ:
        if name.startswith(prefix) and name not in known:
            raise SettingsError(f"unknown environment variable {name}")
    values: dict[str, Any] = {}
    for field in fields:
        flag, variable = "--" + field.name.replace("_", "-"), prefix + field.name.upper()
        text, source = flags[field.name], flag
        if text is None and variable in environ:
            text, source = environ[variable], variable
        if text is not None:
            values[field.name] = _convert(
                text, types_of[field.name], field.metadata["choices"], source
            )
        elif field.default is dataclasses.MISSING:
            raise SettingsError(f"{flag} (or {variable}) is required")
    return typing.cast("T", cls(**values))


def to_flags(settings: Any) -> list[str]:
    """Return the flags that make `parse_settings` build these settings again."""
    flags: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is not None:
            text = ("true" if value else "false") if isinstance(value, bool) else str(value)
            flags.append(f"--{field.name.replace('_', '-')}={text}")
    return flags


def _convert(text: str, annotation: Any, choices: tuple[str, ...], source: str) -> Any:
    if isinstance(annotation, types.UnionType):  # X | None: an empty text means None
        if text == "":
            return None
        annotation = next(t for t in typing.get_args(annotation) if t is not type(None))
    if choices and text not in choices:
        raise SettingsError(f"{source}: {text!r} is not one of {', '.join(choices)}")
    convert: Callable[[str], Any] = _boolean if annotation is bool else annotation
    try:
        return convert(text)
    except ValueError:
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}[annotation]
        raise SettingsError(f"{source}: {text!r} is not {wanted}") from None


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def require(condition: bool, message: str) -> None:
    """Raise SettingsError unless the condition holds.

    For checks in a settings class's __post_init__.
    """
    if not condition:
        raise SettingsError(message)
