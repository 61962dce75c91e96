"""What is measured, and how a cell's results travel: one JSON object a line.

Standard library alone. Peers run in environments of their own, with other versions of everything:
this module is all that they share with the rest.
"""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Cell:
    """Decode of `batch` sequences that hold `context` tokens each."""

    batch: int
    context: int


@dataclass(frozen=True)
class Timing:
    """One cell of one engine. Greedy decode: prompts are computed, or filled in, before."""

    engine: str
    format: str
    """Of weights, and of KV where the engine lets it be chosen."""
    batch: int
    context: int
    tokens_per_s: tuple[float, ...]
    """Of each repeat."""
    stage_ms: dict[str, float] | None = None
    """Milliseconds a step by stage, where the engine tells."""


def parse_cells(text: str) -> list[Cell]:
    """Read `1:128,8:1024`, batch:context."""
    return [Cell(*(int(n) for n in part.split(":"))) for part in text.split(",")]


def peer_arguments(formats: Sequence[str]) -> Namespace:
    """Read the arguments that every engine's script takes."""
    parser = ArgumentParser()
    parser.add_argument("--model", required=True, help="directory, in the engine's own format")
    parser.add_argument("--format", required=True, choices=formats)
    parser.add_argument("--cells", required=True, type=parse_cells)
    parser.add_argument("--tokens", type=int, default=16, help="decode steps of a repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def report(
    engine: str,
    arguments: Namespace,
    measure: Callable[[Cell], tuple[list[float], dict[str, float] | None]],
) -> None:
    """Measure every cell and print a line for each; a cell that fails is told on stderr."""
    for cell in arguments.cells:
        try:
            speeds, stages = measure(cell)
        except (RuntimeError, ValueError, MemoryError) as error:
            print(f"{engine} {cell}: {error}", file=sys.stderr)
            continue
        timing = Timing(engine, arguments.format, cell.batch, cell.context, tuple(speeds), stages)
        print("CELL " + json.dumps(asdict(timing)), flush=True)


def read_timing(line: str) -> Timing | None:
    """Read a line that `report` printed; None for any other line."""
    if not line.startswith("CELL "):
        return None
    values = json.loads(line.removeprefix("CELL "))
    return Timing(**(values | {"tokens_per_s": tuple(values["tokens_per_s"])}))
