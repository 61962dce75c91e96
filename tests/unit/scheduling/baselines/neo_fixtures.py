"""Recorded decisions of the original NEO scheduler, as configurations and queues of ours."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from dualpace.core.request import Request
from dualpace.core.sequence import Sequence
from dualpace.scheduling.baselines.neo import NeoBatch, NeoConfig, NeoPredictor, NeoTables
from dualpace.scheduling.curves import Curve, Grid

PATH = Path(__file__).parents[3] / "fixtures/neo/decisions.json.gz"


@cache
def recorded() -> dict[str, Any]:
    with gzip.open(PATH) as file:
        document: dict[str, Any] = json.load(file)
    assert document["format"] == "neo-decisions/1"
    return document


def config_of(values: dict[str, Any]) -> NeoConfig:
    renamed = {("launch_ms" if k == "lnch_ms" else k): v for k, v in values.items()}
    return NeoConfig(**renamed)


@cache
def predictor_of(name: str) -> NeoPredictor:
    tables = recorded()["tables"][name]

    def curve(key: str) -> Curve:
        return Curve(tuple(tables[key]["x"]), tuple(tables[key]["ms"]))

    cdec = tables["cdec"]
    grid = Grid(tuple(cdec["s"]), tuple(Curve(tuple(cdec["n"]), tuple(row)) for row in cdec["ms"]))
    return NeoPredictor(NeoTables(curve("linr"), curve("pref"), curve("gdec"), grid))


def sequence_of(request_id: int, length: int, *, prompt: int = 1, output: int = 1) -> Sequence:
    request = Request(request_id=request_id, gateway_id=1, prompt_tokens=prompt, max_tokens=output)
    return Sequence(request, [0] * length)


def ids(batches: tuple[NeoBatch, ...]) -> list[dict[str, list[int]]]:
    return [
        {
            kind: [s.request_id for s in getattr(batch, kind)]
            for kind in ("gprf", "cprf", "gdec", "cdec")
        }
        for batch in batches
    ]
