"""Figures: that they are drawn from runs, labelled, and written with their numbers."""

import csv
from pathlib import Path

import pytest

from dualpace.lab.figures import decisions, progress, rates
from dualpace.lab.figures.page import Book
from dualpace.lab.systems import Hardware
from dualpace.lab.traces import workload

LABEL = "simulated: some node, seed 0, commit abc"


def numbers(folder: Path, name: str) -> list[dict[str, str]]:
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    first, *lines = (folder / f"{name}.csv").read_text().splitlines()
    assert first == f"# {LABEL}"
    return list(csv.DictReader(lines))


def test_the_decision_chart_shows_assist_where_it_gains(tmp_path: Path) -> None:
    decisions.draw(Book(tmp_path, LABEL), Hardware())
    rows = numbers(tmp_path, "figure-07-decisions")
    assert {row["route"] for row in rows} == {"host", "assist"}
    for row in rows:
        if row["route"] == "assist":
            assert float(row["with_assist_s"]) < float(row["cpu_alone_s"])


def test_progress_counts_every_token(tmp_path: Path) -> None:
    progress.draw(Book(tmp_path, LABEL), Hardware(device_blocks=300), requests=40, seed=0)
    rows = numbers(tmp_path, "figure-01-progress")
    for name in progress.SYSTEMS:
        totals = [int(row["tokens"]) for row in rows if row["system"] == name]
        assert totals == sorted(totals)
        assert totals[-1] == sum(item.output_tokens for item in workload("azure-conv", count=40))


def test_rate_figures_share_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "RATES", (2.0, 4.0))
    rates.draw(Book(tmp_path, LABEL), Hardware(), requests=15, seed=0, jobs=1)
    for name in ("figure-09-latency", "figure-10-itl", "figure-13-ttft"):
        assert len(numbers(tmp_path, name)) == 2 * 2 * 5
