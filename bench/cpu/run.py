"""Compares the cpu-engine with other engines: same machine, model and format, in one run.

Engines take turns, round by round, each in a process of its own, so that all meet the same
neighbours on the machine; `--together` has them change cell by cell, within seconds. Prints tokens
per second, the ratio to the best peer, which share of this machine's measured limits the products
and attention reach, which targets are met, and the best ratio that the limits allow (`reach`); the
last line is one JSON object. With `--into FILE` what is measured is kept, and a later run with the
same FILE goes on: other cells, formats or engines, or more rounds. DUALPACE_MAX_ISA caps every
engine; which were seen to use AVX-512 all the same is said. Figures are measured, never modelled;
compare only figures of one file.
"""

import json
import os
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from functools import partial
from pathlib import Path

from cpu.cells import parse_cells
from cpu.engines import ENGINES, Settings, open_session
from cpu.limits import measure_limits
from cpu.store import Store
from cpu.summary import (
    draw,
    free_of_cap,
    limits_text,
    row_text,
    rows_of,
    target_record,
    target_text,
    targets_of,
)
from cpu.turns import Pair, take_turns

from dualpace.checkpoint import open_checkpoint
from dualpace.kernels import capabilities


def parse_arguments() -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, required=True, help="folder of setup_peers.sh")
    parser.add_argument("--model", default="demo", choices=("demo", "random-1b"))
    parser.add_argument(
        "--engines", default=",".join(ENGINES), help="names, or NAME/FORMAT for one in one format"
    )
    parser.add_argument("--formats", default="float32,bfloat16,float16,int8")
    parser.add_argument("--cells", default="1:128,8:128,32:128,1:1024,8:1024,32:1024")
    parser.add_argument("--rounds", type=int, default=3, help="0: only summarise --into's file")
    parser.add_argument(
        "--together",
        action="store_true",
        help="keep all engines alive, in all formats, and change cell by cell; needs their memory",
    )
    parser.add_argument("--tokens", type=int, default=32, help="decode steps of a cell")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=float, default=600, help="seconds for a load or a cell")
    parser.add_argument("--into", type=Path, help="file of lines to keep and to add to")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    return parser.parse_args()


def pairs_of(engines: list[str], formats: list[str]) -> list[Pair]:
    """Return each engine in each format, but those that name theirs in that alone."""
    free = [name for name in engines if "/" not in name]
    named = [(name, format_) for name, _, format_ in (e.partition("/") for e in engines) if format_]
    return [(name, format_) for format_ in formats for name in free] + named


def measure(arguments: Namespace, store: Store) -> None:
    """Time every engine in every format: all alive at once, or one after the other each round."""
    settings = Settings(
        arguments.peers, arguments.model, arguments.tokens, arguments.threads, arguments.limit
    )
    cells = parse_cells(arguments.cells)
    pairs = pairs_of(arguments.engines.split(","), arguments.formats.split(","))
    groups = [pairs] if arguments.together else [[pair] for pair in pairs]
    passes = min(arguments.rounds, 1) if arguments.together else arguments.rounds
    without: set[Pair] = set()
    for number in range(passes):
        for group in groups:
            openers = {
                (name, format_): partial(open_session, ENGINES[name], format_, cells, settings)
                for name, format_ in group
                if (name, format_) not in without
            }
            timed = take_turns(
                store,
                openers,
                cells,
                rounds=arguments.rounds if arguments.together else 1,
                measure_limits=partial(measure_limits, arguments.threads),
            )
            without |= openers.keys() - timed
        print(f"pass {number + 1} of {passes} done", flush=True)


def main() -> None:
    """Measure, print, and write what was asked for."""
    arguments = parse_arguments()
    isa = capabilities().isa
    header = {"model": arguments.model, "isa": isa, "threads": arguments.threads}
    store = Store.open(arguments.into, header)
    print(capabilities(), flush=True)
    capped = "DUALPACE_MAX_ISA" in os.environ
    measure(arguments, store)
    free = free_of_cap(store) if capped else []
    if free:
        print(f"not held to {isa}, seen to use AVX-512: {', '.join(free)}")
    config = open_checkpoint(arguments.peers / "models" / arguments.model).config
    rows = rows_of(store, config)
    targets = targets_of(store, config)
    print(limits_text(store.limits))
    for line in (*map(row_text, rows), *map(target_text, targets)):
        print(line)
    result = header | {
        "kind": "measured",
        "not_held_to_isa": free,
        "limits": [asdict(limits) for limits in store.limits],
        "missing": {" ".join(pair): reason for pair, reason in store.missing.items()},
        "cells": rows,
        "targets": [*map(target_record, targets)],
    }
    if arguments.png:
        draw(rows, arguments.png)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
