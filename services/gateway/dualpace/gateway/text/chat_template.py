"""Renders a model's chat template, sandboxed, with the helpers that such templates expect.

Templates come with the model, never from a client; still they run sandboxed, and on what a client
sent. Rendering is blocking work: callers use a thread. It ends at a size and at a deadline, checked
between the pieces a template puts out.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dualpace.core.errors import CheckpointError, DualPaceError

_DEADLINE_S = 10.0
_FAILURES = (
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
"""What expressions of a template may raise on values they were not written for."""


class TemplateRefusalError(DualPaceError):
    """The template does not accept these messages; its text is for the client."""


class _GenerationTag(Extension):
    """`{% generation %}` marks text for training; for serving only its contents matter."""

    tags = {"generation"}  # noqa: RUF012 - declared so by the base class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateTooLongError(TemplateRefusalError):
    """The rendered text passed the size that was given as its limit."""


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where Jinja's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = time.strftime
    return environment


class ChatTemplate:
    """A compiled template and the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile. Raises CheckpointError if the template is not valid Jinja.

        special_tokens: texts by name, bos_token and eos_token above all.
        """
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise CheckpointError(
                f"the chat template does not parse: {error.message} (line {error.lineno})"
            ) from None
        self._special_tokens = dict(special_tokens)
        self.knows_developer = "developer" in source
        """Templates from before that role would drop or misplace its messages."""
        self.knows_tools = "tools" in source
        """Others would silently leave tools out."""
        self.knows_calls = "tool_calls" in source
        """Others would silently leave out what the assistant called before."""
        self.knows_documents = "documents" in source
        self.knows_effort = "reasoning_effort" in source
        self.knows_thinking = "enable_thinking" in source
        """A switch in place of grades of effort."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_characters: int,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt's text, up to where the assistant speaks.

        variables: further ones that a template may know. Raises TemplateRefusalError with the
        template's own words, or saying which limit was passed.
        """
        variables = {
            **(variables or {}),
            **self._special_tokens,
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return _joined(self._template.generate(variables), max_characters)
        except TemplateError as error:
            raise TemplateRefusalError(
                f"the model's chat template refuses it: {(error.message or '')[:500]}"
            ) from None
        except _FAILURES as error:
            raise TemplateRefusalError(
                f"the model's chat template fails on it: {type(error).__name__}: {str(error)[:200]}"
            ) from None


def _joined(pieces: Iterator[str], max_characters: int) -> str:
    """Return all pieces as one text. Raises TemplateRefusalError when they pass a limit."""
    deadline = time.monotonic() + _DEADLINE_S
    kept: list[str] = []
    size = 0
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size > max_characters:
            raise TemplateTooLongError(
                f"the rendered conversation is longer than {max_characters} characters"
            )
        if time.monotonic() > deadline:
            raise TemplateRefusalError(f"rendering took longer than {_DEADLINE_S:g} s")
    return "".join(kept)
