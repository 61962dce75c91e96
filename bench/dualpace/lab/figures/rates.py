"""Figures 9, 10 and 13: latency and throughput against the request rate."""

from collections.abc import Sequence
from typing import Any

from dualpace.lab.batch import Run, run_all
from dualpace.lab.figures.page import COLORS, Book
from dualpace.lab.systems import SYSTEMS, Hardware

RATES = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)


def draw(book: Book, hardware: Hardware, *, requests: int, seed: int, jobs: int) -> None:
    """Draw the three figures from one set of runs for each workload."""
    rows: list[dict[str, Any]] = []
    for name in ("azure-conv", "azure-code"):
        cases = [
            Run(
                system=system,
                hardware=hardware,
                rate=rate,
                workload=name,
                requests=requests,
                seed=seed,
            )
            for system in SYSTEMS
            for rate in RATES
        ]
        rows += [
            {"workload": name, "system": case.system, "rate": case.rate, **metrics.as_dict()}
            for case, metrics in zip(cases, run_all(cases, jobs=jobs), strict=True)
        ]
    _draw(
        book,
        "figure-09-latency",
        "Normalized latency and throughput",
        [("normalized_latency_s", "s per output token", True), ("tokens_per_s", "tokens/s", False)],
        rows,
    )
    _draw(
        book,
        "figure-10-itl",
        "P99 ITL and P99 TPOT",
        [("itl_p99_s", "P99 ITL, s", True), ("tpot_p99_s", "P99 TPOT, s", True)],
        rows,
    )
    _draw(
        book,
        "figure-13-ttft",
        "Time to the first token",
        [("ttft_mean_s", "mean TTFT, s", True), ("ttft_p99_s", "P99 TTFT, s", True)],
        rows,
    )


def _draw(
    book: Book,
    name: str,
    title: str,
    measures: Sequence[tuple[str, str, bool]],
    rows: Sequence[dict[str, Any]],
) -> None:
    workloads = sorted({row["workload"] for row in rows}, reverse=True)
    figure, panels = book.page(len(measures) * len(workloads), title)
    choices = [(w, *measure) for w in workloads for measure in measures]
    for panel, (workload, key, label, logarithmic) in zip(panels, choices, strict=True):
        for system in SYSTEMS:
            points = [r for r in rows if r["workload"] == workload and r["system"] == system]
            panel.plot(
                [p["rate"] for p in points],
                [p[key] for p in points],
                marker=".",
                color=COLORS[system],
                label=system,
            )
        panel.set(title=workload, xlabel="requests/s", ylabel=label)
        if logarithmic:
            panel.set_yscale("log")
    panels[0].legend(fontsize=7)
    shown = ["workload", "system", "rate", *(key for key, _, _ in measures)]
    book.save(name, figure, [{key: row[key] for key in shown} for row in rows])
