"""Reading public traces of LLM services: Azure, Mooncake, BurstGPT, and samples of the first."""

import csv
import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from dualpace.core.errors import SettingsError
from dualpace.lab.workload import Lengths, fixed, sharegpt_like

SAMPLES = ("azure-conv", "azure-code")
"""The first 2,000 requests of each are part of the package."""


def workload(name: str, *, count: int | None = None, seed: int = 0) -> list[Lengths]:
    """Return the lengths that `name` stands for. Raises SettingsError.

    `azure-conv`, `azure-code`, `azure-code+conv` (one after the other), `fixed:<prompt>:<output>`,
    `sharegpt`, or the path of a trace file.
    """
    if name in SAMPLES:
        items = _sample(name)
    elif name == "azure-code+conv":
        items = [*_sample("azure-code"), *_sample("azure-conv")]
    elif name == "sharegpt":
        items = sharegpt_like(count or 2000, seed)
    elif name.startswith("fixed:"):
        items = _fixed(name, count or 2000)
    else:
        items = read_trace(Path(name))
    if count is not None and count < 1:
        raise SettingsError(f"count: {count} is not above zero")
    return items[:count]


def read_trace(path: Path) -> list[Lengths]:
    """Read a trace file; its format shows in its first line. Raises SettingsError."""
    if not path.is_file():
        names = "azure-conv, azure-code, azure-code+conv, fixed:<prompt>:<output>, sharegpt"
        raise SettingsError(f"workload: {str(path)!r} is no file, nor one of {names}")
    with path.open(newline="", encoding="utf-8") as file:
        first = file.readline()
        file.seek(0)
        if first.startswith("{"):
            rows: Iterator[Mapping[str, Any]] = (json.loads(line) for line in file if line.strip())
            read: Callable[[Mapping[str, Any]], Lengths] = _mooncake
        else:
            rows = csv.DictReader(file)
            read = _reader_for(path, first)
        try:
            items = [read(row) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"workload: {path}: a row cannot be read: {error}") from error
    return [i for i in items if i.prompt_tokens > 0 and i.output_tokens > 0]


def _reader_for(path: Path, header: str) -> Callable[[Mapping[str, Any]], Lengths]:
    for column, reader in (
        ("ContextTokens", _azure),
        ("Request tokens", _burstgpt),
        ("prompt_tokens", _own),
    ):
        if column in header:
            return reader
    raise SettingsError(f"workload: {path}: the columns are those of no known trace")


def _azure(row: Mapping[str, Any]) -> Lengths:
    # Seven fractional digits, one more than Python reads.
    whole, _, fraction = row["TIMESTAMP"].partition(".")
    moment = dt.datetime.fromisoformat(whole).replace(tzinfo=dt.UTC)
    seconds = moment.timestamp() + float(f"0.{fraction or 0}")
    return Lengths(seconds, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _burstgpt(row: Mapping[str, Any]) -> Lengths:
    tokens = int(row["Request tokens"]), int(row["Response tokens"])
    return Lengths(float(row["Timestamp"]), *tokens)


def _mooncake(row: Mapping[str, Any]) -> Lengths:
    return Lengths(row["timestamp"] / 1e3, int(row["input_length"]), int(row["output_length"]))


def _own(row: Mapping[str, Any]) -> Lengths:
    tokens = int(row["prompt_tokens"]), int(row["output_tokens"])
    return Lengths(float(row["seconds"]), *tokens)


def _sample(name: str) -> list[Lengths]:
    text = (files("dualpace.lab") / "data" / f"{name}-2000.csv").read_text(encoding="utf-8")
    return [_own(row) for row in csv.DictReader(text.splitlines())]


def _fixed(name: str, count: int) -> list[Lengths]:
    try:
        _, prompt, output = name.split(":")
        sizes = int(prompt), int(output)
    except ValueError:
        sizes = (0, 0)
    if min(sizes) < 1:
        raise SettingsError(f"workload: {name!r} is not fixed:<prompt tokens>:<output tokens>")
    return fixed(count, *sizes)
