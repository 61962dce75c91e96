"""Requests that are meant to hurt: each must get a 4xx soon, and cost others next to nothing."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_NONCE = b"number__________"
_SAY_HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}


@dataclass(frozen=True)
class Bomb:
    """A request, and the status it must get."""

    name: str
    path: str
    body: bytes
    status: int
    chunked: bool = False
    """Sent without saying how long it is."""

    def content(self, number: int) -> bytes | Iterator[bytes]:
        """Return the body of the bomb with this number: what is the same might be remembered."""
        body = self.body.replace(_NONCE, b"%016d" % number, 1)
        if not self.chunked:
            return body
        return (body[begin : begin + (1 << 16)] for begin in range(0, len(body), 1 << 16))


def bombs() -> list[Bomb]:
    """Return one or more of every kind."""
    huge = b'{"prompt": "' + b"a" * (10 << 20) + b'"}'
    stops = {"prompt": "Hi", "stop": [f"stop {number}" for number in range(10_000)]}
    return [
        _form("grammar: exponential schema", {"json": _product_of_choices(8)}),
        _form("grammar: nested schema", {"json": _nested_schema(2000)}),
        _form("grammar: many alternatives", {"grammar": _wide_grammar(20_000)}),
        Bomb("body: 10 MB", COMPLETIONS, huge, 413),
        Bomb("body: 10 MB, length untold", COMPLETIONS, huge, 413, chunked=True),
        _json("stops: 10,000", COMPLETIONS, stops),
        _json("template: endless loop", CHAT, _SAY_HI | {"chat_template": _LOOP}),
        _json("template: 200,000 messages", CHAT, _talk(200_000)),
    ]


_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"


def _json(name: str, path: str, value: Any) -> Bomb:
    return Bomb(name, path, json.dumps(value).encode(), 400)


def _form(name: str, form: dict[str, Any]) -> Bomb:
    return _json(name, CHAT, _SAY_HI | {"structured_outputs": form})


def _product_of_choices(count: int) -> dict[str, Any]:
    """Return a schema that has count ** count cases once it is multiplied out."""
    title = _NONCE.decode()
    cases = [
        {"anyOf": [{"properties": {f"k{i}": {"const": j}}} for j in range(count)]}
        for i in range(count)
    ]
    return {"title": title, "type": "object", "allOf": cases}


def _nested_schema(depth: int) -> str:
    """Return a schema within a schema, and so on, as text: JSON that deep has limits of its own."""
    begin = '{"type":"object","properties":{"a":' * depth
    return begin + f'{{"title":"{_NONCE.decode()}"}}' + "}}" * depth


def _wide_grammar(alternatives: int) -> str:
    words = " | ".join(f'"{number:x}" word{number}' for number in range(alternatives))
    rules = "\n".join(f"word{number}: /[a-z]{{1,500}}/" for number in range(alternatives))
    return f"start: {words}\n{rules}\n"


def _talk(messages: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}] * messages, "max_tokens": 8}
