"""Profiles as JSON documents, format `dualpace-profile/1` (docs/profiler.md).

Reading is strict: an unknown or missing key, a wrong type, or a table that is not positive and
rising is refused with the path to it.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dualpace.core.errors import ProfileError
from dualpace.scheduling.curves import Curve, Grid
from dualpace.scheduling.profile import (
    FORMAT,
    ModelShape,
    Origin,
    Profile,
    Source,
    Sources,
    StageTimes,
    Threshold,
)

C = TypeVar("C")

_PARTS = ("gpu", "host", "transfers", "assist")


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """Return the document of a profile."""
    model = profile.model
    return {
        "format": FORMAT,
        "origin": profile.origin.value,
        "sources": {part: getattr(profile.sources, part).value for part in _PARTS},
        "hardware": {
            "gpu": profile.gpu_name,
            "host": profile.host_name,
            "fingerprint": profile.hardware_fingerprint,
        },
        "model": {
            "name": model.name,
            "fingerprint": model.fingerprint,
            "num_layers": model.num_layers,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "attention_input_bytes": model.attention_input_bytes,
            "attention_output_bytes": model.attention_output_bytes,
        },
        "gpu": _stages_to_json(profile.gpu)
        | {"prefill_attention": _curve_to_json("pairs", profile.gpu_prefill_attention)},
        "host": _stages_to_json(profile.host),
        "transfers": {
            "to_host": _curve_to_json("bytes", profile.to_host),
            "to_device": _curve_to_json("bytes", profile.to_device),
        },
        "assist": {"sync_ms": profile.assist_sync_ms},
        "thresholds": [
            {"name": t.name, "value": t.value, "unit": t.unit, "why": t.why}
            for t in profile.thresholds
        ],
        "evidence": dict(profile.evidence),
    }


def profile_from_json(document: Any) -> Profile:
    """Build a profile from a parsed document. Raises ProfileError naming the path at fault."""
    root = _Node(document, "profile")
    found = root.text("format")
    if found != FORMAT:
        raise ProfileError(f"profile.format: {found!r} is not {FORMAT!r}")
    hardware, model = root.child("hardware"), root.child("model")
    gpu, transfers = root.child("gpu"), root.child("transfers")
    sources = root.child("sources")
    profile = Profile(
        origin=root.choice("origin", {o.value: o for o in Origin}),
        gpu_name=hardware.text("gpu"),
        host_name=hardware.text("host"),
        hardware_fingerprint=hardware.text("fingerprint"),
        model=ModelShape(
            name=model.text("name"),
            fingerprint=model.text("fingerprint"),
            num_layers=model.count("num_layers"),
            kv_bytes_per_token=model.count("kv_bytes_per_token"),
            attention_input_bytes=model.count("attention_input_bytes"),
            attention_output_bytes=model.count("attention_output_bytes"),
        ),
        gpu_prefill_attention=_curve(gpu.child("prefill_attention"), "pairs"),
        gpu=_stages(gpu),
        host=_stages(root.child("host")),
        to_host=_curve(transfers.child("to_host"), "bytes"),
        to_device=_curve(transfers.child("to_device"), "bytes"),
        assist_sync_ms=root.child("assist").milliseconds("sync_ms"),
        thresholds=tuple(
            Threshold(
                name=t.text("name"),
                value=t.number("value"),
                unit=t.text("unit"),
                why=t.text("why"),
            )
            for t in root.children("thresholds")
        ),
        sources=Sources(
            **{part: sources.choice(part, {s.value: s for s in Source}) for part in _PARTS}
        ),
        evidence=root.mapping("evidence"),
    )
    root.refuse_unknown()
    return profile


def _stages_to_json(stages: StageTimes) -> dict[str, Any]:
    grid = stages.decode_attention
    return {
        "pre_attention": _curve_to_json("rows", stages.pre_attention),
        "post_attention": _curve_to_json("rows", stages.post_attention),
        "head": _curve_to_json("rows", stages.head),
        "decode_attention": {
            "rows": list(grid.rows),
            "kv_tokens": list(grid.curves[0].x),
            "ms": [list(curve.ms) for curve in grid.curves],
        },
        "step_overhead_ms": stages.step_overhead_ms,
    }


def _stages(node: "_Node") -> StageTimes:
    return StageTimes(
        pre_attention=_curve(node.child("pre_attention"), "rows"),
        post_attention=_curve(node.child("post_attention"), "rows"),
        head=_curve(node.child("head"), "rows"),
        decode_attention=_grid(node.child("decode_attention")),
        step_overhead_ms=node.milliseconds("step_overhead_ms"),
    )


def _curve_to_json(axis: str, curve: Curve) -> dict[str, Any]:
    return {axis: list(curve.x), "ms": list(curve.ms)}


def _curve(node: "_Node", axis: str) -> Curve:
    knots = node.knots(axis)
    return Curve(knots, node.times("ms", node.value("ms"), len(knots)))


def _grid(node: "_Node") -> Grid:
    rows, tokens = node.knots("rows"), node.knots("kv_tokens")
    table = node.value("ms")
    if not isinstance(table, list) or len(table) != len(rows):
        raise node.error("ms", f"{len(rows)} rows of times are needed, one a row count")
    curves = (
        Curve(tokens, node.times(f"ms[{i}]", times, len(tokens))) for i, times in enumerate(table)
    )
    return Grid(rows, tuple(curves))


class _Node:
    """A JSON object, its path, and which of its keys were read."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            raise ProfileError(f"{path}: an object is needed")
        self._value = value
        self._path = path
        self._read: set[str] = set()
        self._children: list[_Node] = []

    def error(self, key: str, message: str) -> ProfileError:
        return ProfileError(f"{self._path}.{key}: {message}")

    def value(self, key: str) -> Any:
        self._read.add(key)
        if key not in self._value:
            raise self.error(key, "is missing")
        return self._value[key]

    def child(self, key: str) -> "_Node":
        node = _Node(self.value(key), f"{self._path}.{key}")
        self._children.append(node)
        return node

    def children(self, key: str) -> "list[_Node]":
        values = self.value(key)
        if not isinstance(values, list):
            raise self.error(key, "a list is needed")
        nodes = [_Node(v, f"{self._path}.{key}[{i}]") for i, v in enumerate(values)]
        self._children.extend(nodes)
        return nodes

    def refuse_unknown(self) -> None:
        """Name a key that nobody read, here or below."""
        for key in self._value:
            if key not in self._read:
                raise self.error(key, "is unknown")
        for child in self._children:
            child.refuse_unknown()

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str):
            raise self.error(key, "a text is needed")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.value(key)
        if not isinstance(value, Mapping):
            raise self.error(key, "an object is needed")
        return value

    def choice(self, key: str, choices: Mapping[str, C]) -> C:
        text = self.text(key)
        if text not in choices:
            raise self.error(key, f"{text!r} is not one of {', '.join(choices)}")
        return choices[text]

    def number(self, key: str) -> float:
        return _number(self.value(key), lambda m: self.error(key, m))

    def milliseconds(self, key: str) -> float:
        number = self.number(key)
        if number < 0:
            raise self.error(key, f"{number} is negative")
        return number

    def count(self, key: str) -> int:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, "a whole number above zero is needed")
        return value

    def knots(self, key: str) -> tuple[int, ...]:
        values = self.value(key)
        whole = isinstance(values, list) and all(
            isinstance(v, int) and not isinstance(v, bool) for v in values
        )
        if not whole or not values:
            raise self.error(key, "a list of whole numbers is needed")
        if values[0] < 1 or any(b <= a for a, b in itertools.pairwise(values)):
            raise self.error(key, "must rise strictly from above zero")
        return tuple(values)

    def times(self, key: str, values: Any, count: int) -> tuple[float, ...]:
        if not isinstance(values, list) or len(values) != count:
            raise self.error(key, f"a list of {count} times is needed")
        numbers = tuple(
            _number(v, lambda m, i=i: self.error(f"{key}[{i}]", m))  # type: ignore[misc]
            for i, v in enumerate(values)
        )
        for i, number in enumerate(numbers):
            if number <= 0:
                raise self.error(f"{key}[{i}]", f"{number} is not above zero")
        return numbers


def _number(value: Any, error: Callable[[str], ProfileError]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise error("a finite number is needed")
    return float(value)
