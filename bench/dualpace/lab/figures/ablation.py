"""What each part of our policy is worth: runs with one part changed."""

import math
from typing import Any

from dualpace.lab.batch import Run, run_all
from dualpace.lab.figures.page import Book
from dualpace.lab.systems import VARIANTS, Hardware

RATE = 2.5
"""About what NEO sustains: there TTFT is compared."""


def draw(book: Book, hardware: Hardware, *, requests: int, seed: int, jobs: int) -> None:
    """Draw tokens per second of each variant, and write its latencies beside."""
    names = ["dualpace", *VARIANTS]
    cases = [
        Run(system=name, hardware=hardware, rate=rate, requests=requests, seed=seed)
        for name in names
        for rate in (math.inf, RATE)
    ]
    results = list(run_all(cases, jobs=jobs))
    rows: list[dict[str, Any]] = [
        {
            "variant": name,
            "tokens_per_s": saturated.tokens_per_s,
            "over_dualpace": saturated.tokens_per_s / results[0].tokens_per_s,
            "itl_p99_s": saturated.itl_p99_s,
            "assist_share": saturated.assist_share,
            "ttft_p99_s_at_2.5": steady.ttft_p99_s,
            "itl_p99_s_at_2.5": steady.itl_p99_s,
        }
        for name, saturated, steady in zip(names, results[::2], results[1::2], strict=True)
    ]
    figure, (panel,) = book.page(1, "One part changed")
    panel.barh(names[::-1], [row["tokens_per_s"] for row in rows[::-1]])
    panel.set_xlabel("tokens/s, saturated")
    book.save("ablation", figure, rows)
