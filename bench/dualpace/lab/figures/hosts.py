"""Figures 11, 14 and 15: one or two CPU ranks, and the size of the host's KV memory."""

import math
from dataclasses import replace
from typing import Any

from dualpace.lab.batch import Run, run_all, search_all
from dualpace.lab.figures.page import COLORS, Book
from dualpace.lab.search import Targets
from dualpace.lab.systems import Hardware

HOSTS = ("xeon-4510-120", "xeon-4510-120-tp2")
OURS = "1 s between tokens"
SYSTEMS = (OURS, "neo-measured", "neo")
_NAMES = ("dualpace", *SYSTEMS[1:])
GIB = (30, 60, 120, 240)
_BLOCK_BYTES = 16 * 131072
TPOT_TARGET_S = 1.0


def draw(book: Book, hardware: Hardware, *, requests: int, seed: int, jobs: int) -> None:
    """Draw the three figures. Ours has a target of 1 s between tokens, so that memory can bind."""
    cases = [
        Run(
            system=system,
            hardware=replace(hardware, host=host, host_blocks=(gib << 30) // _BLOCK_BYTES),
            rate=math.inf,
            requests=requests,
            seed=seed,
        )
        for system in SYSTEMS
        for host in HOSTS
        for gib in GIB
    ]
    saturated = list(run_all(cases, jobs=jobs))
    targets = Targets(tpot_p99_s=TPOT_TARGET_S)
    sustained = list(search_all(cases, targets, jobs=jobs))
    rows = [
        {
            "system": "dualpace" if case.system == OURS else case.system,
            "ranks": HOSTS.index(case.hardware.host) + 1,
            "host_gib": case.hardware.host_blocks * _BLOCK_BYTES >> 30,
            "tokens_per_s": metrics.tokens_per_s,
            "host_token_share": metrics.host_token_share,
            "tpot_p99_s": metrics.tpot_p99_s,
            "rate_at_tpot": rate,
        }
        for case, metrics, rate in zip(cases, saturated, sustained, strict=True)
    ]
    _ranks(book, rows)
    _sizes(book, "figure-14-host-memory", "tokens_per_s", "tokens/s, saturated", rows)
    _sizes(
        book,
        "figure-15-sustained",
        "rate_at_tpot",
        f"requests/s at P99 TPOT <= {TPOT_TARGET_S} s",
        rows,
    )


def _ranks(book: Book, rows: list[dict[str, Any]]) -> None:
    figure, (panel,) = book.page(1, "One or two CPU ranks, 60 GiB of KV in all")
    chosen = [row for row in rows if row["host_gib"] == GIB[1]]
    for index, system in enumerate(_NAMES):
        heights = [row["tokens_per_s"] for row in chosen if row["system"] == system]
        panel.bar(
            [x + 0.25 * index for x in range(len(HOSTS))],
            heights,
            0.25,
            color=COLORS[system],
            label=system,
        )
    panel.set_xticks([0.25, 1.25], ["1 rank", "2 ranks"])
    panel.set_ylabel("tokens/s, saturated")
    panel.legend()
    book.save("figure-11-ranks", figure, chosen)


def _sizes(book: Book, name: str, key: str, label: str, rows: list[dict[str, Any]]) -> None:
    figure, panels = book.page(2, "Host KV memory")
    for rank, panel in enumerate(panels, start=1):
        for system in _NAMES:
            points = [r for r in rows if r["system"] == system and r["ranks"] == rank]
            panel.plot(
                [p["host_gib"] for p in points],
                [p[key] for p in points],
                marker=".",
                color=COLORS[system],
                label=system,
            )
        panel.set(title=f"{rank} CPU rank(s)", xlabel="GiB", ylabel=label)
        panel.set_xscale("log", base=2)
        panel.legend()
    book.save(name, figure, rows)
