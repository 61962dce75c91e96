"""A sweep keeps to its time on a slow or busy machine, and has every result all the same."""

from pathlib import Path

from dualpace.profiler.journal import Journal
from dualpace.profiler.sweep import Cell, run_sweep
from dualpace.profiler.timing import Patience, Surroundings

PATIENCE = Patience(tolerance=0.05, most_s=1.0, most_disturbed_s=2.0, least=5, all_s=10.0)


def test_late_results_are_looked_at_once_and_are_not_called_stable(tmp_path: Path) -> None:
    now_s = 0.0

    def sample() -> float:
        nonlocal now_s
        now_s += 0.5
        return 500.0

    cells = [Cell(f"c/{n}", lambda: sample) for n in range(20)]
    with Journal(tmp_path / "p.partial", {}) as journal:
        around = Surroundings(now_s=lambda: now_s)
        results = run_sweep(cells, journal, PATIENCE, around)
    assert list(results) == [cell.key for cell in cells]
    samples = [summary.samples for summary in results.values()]
    assert samples[0] == 5 and samples[-1] == 1
    assert sorted(samples, reverse=True) == samples
    assert not results["c/19"].stable
    assert now_s < 10.0 + 3.5 + 20 * 0.5
