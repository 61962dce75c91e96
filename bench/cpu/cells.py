"""What is measured, and how a cell's results travel: one JSON object a line.

Standard library alone. Peers run in environments of their own, with other versions of everything:
this module is all that they share with the rest.
"""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

READY = "READY"
FAILED = "FAILED"


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
    avx512: bool | None = None
    """Whether its process was seen to use AVX-512; None: nobody looked, or it cannot be told."""


def parse_cells(text: str) -> list[Cell]:
    """Read `1:128,8:1024`, batch:context."""
    return [Cell(*(int(n) for n in part.split(":"))) for part in text.split(",")]


def write_cell(cell: Cell) -> str:
    """Return the line that asks for a cell."""
    return f"{cell.batch}:{cell.context}\n"


def peer_arguments(formats: Sequence[str]) -> Namespace:
    """Read the arguments that every engine's script takes."""
    parser = ArgumentParser()
    parser.add_argument("--model", required=True, help="directory, in the engine's own format")
    parser.add_argument("--format", required=True, choices=formats)
    parser.add_argument("--cells", required=True, type=parse_cells, help="that may be asked for")
    parser.add_argument("--tokens", type=int, default=16, help="decode steps of a repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def report(
    engine: str,
    arguments: Namespace,
    measure: Callable[[Cell], tuple[list[float], dict[str, float] | None]],
) -> None:
    """Measure each cell that a line of stdin asks for, and print a line; READY before the first.

    Of a cell that fails FAILED is printed, and the reason on stderr.
    """
    print(READY, flush=True)
    for line in sys.stdin:
        (cell,) = parse_cells(line)
        try:
            speeds, stages = measure(cell)
        except (RuntimeError, ValueError, MemoryError) as error:
            print(f"{cell}: {error}", file=sys.stderr, flush=True)
            print(FAILED, flush=True)
            continue
        timing = Timing(engine, arguments.format, cell.batch, cell.context, tuple(speeds), stages)
        print("CELL " + json.dumps(asdict(timing)), flush=True)


def read_timing(line: str) -> Timing | None:
    """Read a line that `report` printed; None for any other line."""
    if not line.startswith("CELL "):
        return None
    values = json.loads(line.removeprefix("CELL "))
    return Timing(**(values | {"tokens_per_s": tuple(values["tokens_per_s"])}))
