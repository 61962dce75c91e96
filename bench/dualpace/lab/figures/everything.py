"""All figures and the summary table, into one folder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dualpace.lab.figures import ablation, decisions, hosts, progress, rates
from dualpace.lab.figures.page import Book
from dualpace.lab.ratios import means
from dualpace.lab.summary import Plan, run_plan
from dualpace.lab.systems import Hardware


def draw_all(
    folder: Path,
    hardware: Hardware,
    *,
    requests: int,
    seed: int,
    jobs: int,
    commit: str,
    done: Callable[[str], None],
) -> None:
    """Draw everything; `done` is told what has been."""
    folder.mkdir(parents=True, exist_ok=True)
    book = Book(
        folder,
        f"simulated: {hardware.gpu} + {hardware.host}, {hardware.model}, "
        f"{hardware.device_blocks} device blocks, {requests} requests, seed {seed}, "
        f"commit {commit}",
    )
    decisions.draw(book, hardware)
    done("decisions")
    progress.draw(book, hardware, requests=requests, seed=seed)
    done("progress")
    rates.draw(book, hardware, requests=requests, seed=seed, jobs=jobs)
    done("rates")
    ablation.draw(book, hardware, requests=requests, seed=seed, jobs=jobs)
    done("ablation")
    hosts.draw(book, hardware, requests=requests, seed=seed, jobs=jobs)
    done("hosts")
    plan = Plan(
        hardware=replace(hardware),
        hosts=(hardware.host,),
        requests=requests,
        seeds=(seed,),
    )
    book.table("summary", means(list(run_plan(plan, jobs=jobs))))
    done("summary")
