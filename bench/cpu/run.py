"""Compares the cpu-engine with other engines: same machine, model and format, in one run.

Engines take turns, round by round, each in a process of its own, so that all meet the same
neighbours on the machine. Prints tokens per second, the ratio to the best peer, which share of
this machine's measured limits the products and attention reach, and which targets are met; the
last line is one JSON object. With `--into FILE` what is measured is kept, and a later run with the
same FILE goes on: other cells, formats or engines, or more rounds. DUALPACE_MAX_ISA caps this
engine, and those peers that can be capped. Figures are measured, never modelled; compare only
figures of one file.
"""

import json
import os
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from cpu.cells import parse_cells
from cpu.engines import ENGINES, Settings, run_engine
from cpu.limits import measure_limits
from cpu.store import Store
from cpu.summary import draw, row_text, rows_of, target_text, targets_of

from dualpace.checkpoint import open_checkpoint
from dualpace.kernels import capabilities


def parse_arguments() -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, required=True, help="folder of setup_peers.sh")
    parser.add_argument("--model", default="demo", choices=("demo", "random-1b"))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--formats", default="float32,bfloat16,float16,int8")
    parser.add_argument("--cells", default="1:128,8:128,32:128,1:1024,8:1024,32:1024")
    parser.add_argument("--rounds", type=int, default=3, help="0: only summarise --into's file")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=float, default=600, help="seconds that a process may take")
    parser.add_argument("--into", type=Path, help="file of lines to keep and to add to")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    return parser.parse_args()


def measure(arguments: Namespace, store: Store) -> None:
    """Run all engines in turn, round by round."""
    settings = Settings(
        arguments.peers, arguments.model, arguments.tokens, arguments.threads, arguments.limit
    )
    cells = parse_cells(arguments.cells)
    engines = [ENGINES[name] for name in arguments.engines.split(",")]
    pairs = [(engine, f) for f in arguments.formats.split(",") for engine in engines]
    without: set[tuple[str, str]] = set()
    for number in range(arguments.rounds):
        store.add_limits(measure_limits(arguments.threads))
        for engine, format_ in pairs:
            if (engine.name, format_) in without:
                continue
            timings, reason = run_engine(engine, format_, cells, settings)
            for timing in timings:
                store.add(timing)
            if reason is not None:
                print(f"  {engine.name} {format_}: {reason}", flush=True)
                store.add_missing(engine.name, format_, reason)
            if not timings:
                without.add((engine.name, format_))
        print(f"round {number + 1} of {arguments.rounds} done", flush=True)
    if arguments.rounds:
        store.add_limits(measure_limits(arguments.threads))


def main() -> None:
    """Measure, print, and write what was asked for."""
    arguments = parse_arguments()
    isa = capabilities().isa
    header = {"model": arguments.model, "isa": isa, "threads": arguments.threads}
    store = Store.open(arguments.into, header)
    print(capabilities(), flush=True)
    capped = "DUALPACE_MAX_ISA" in os.environ
    free = [e.name for e in ENGINES.values() if not e.follows_cap] if capped else []
    if free:
        print(f"not held to {isa}, since they cannot be: {', '.join(free)}", flush=True)
    measure(arguments, store)
    config = open_checkpoint(arguments.peers / "models" / arguments.model).config
    rows = rows_of(store, config)
    targets = targets_of(store)
    for limits in store.limits:
        print(f"limits of {arguments.threads} threads, measured: {limits}")
    for line in (*map(row_text, rows), *map(target_text, targets)):
        print(line)
    result = header | {
        "kind": "measured",
        "not_held_to_isa": free,
        "limits": [asdict(limits) for limits in store.limits],
        "missing": {" ".join(pair): reason for pair, reason in store.missing.items()},
        "cells": rows,
        "targets": [asdict(t) | {"ratio": round(t.ratio, 2), "met": t.met} for t in targets],
    }
    if arguments.png:
        draw(rows, arguments.png)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
