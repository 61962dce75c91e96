"""Everything that is measured, in order, each with the name under which its result is kept."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tqdm import tqdm

from dualpace.profiler.bench import Sample, StageBench
from dualpace.profiler.copies import CopyBench
from dualpace.profiler.document import SYNC
from dualpace.profiler.journal import Journal
from dualpace.profiler.knots import Knots
from dualpace.profiler.native_bench import NativeBench
from dualpace.profiler.sides import Node
from dualpace.profiler.timing import Patience, Summary, Surroundings, measure

DENSE = ("pre_attention", "post_attention", "head")


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement."""

    key: str
    prepare: Callable[[], Sample]


def cells_of(node: Node, copies: CopyBench | None, sync: Sample | None = None) -> list[Cell]:
    """Return all measurements of a node."""
    knots = node.knots
    host = StageBench(node.host) if node.host.step is None else NativeBench(node.host)
    cells = [*_side("host", host, knots), *_linears(host, node)]
    if node.device is not None:
        device = StageBench(node.device)
        cells.extend(_side("gpu", device, knots))
        cells.extend(
            Cell(f"gpu/prefill/{n}+{start}", _bind(device.prefill_attention, n, start))
            for n, start in knots.prefills
        )
    if copies is not None:
        for size in knots.sizes:
            cells.append(Cell(f"to_host/{size}", _bind(copies.to_host, size)))
            cells.append(Cell(f"to_device/{size}", _bind(copies.to_device, size)))
    if sync is not None:
        cells.append(Cell(SYNC, lambda: sync))
    return cells


def _side(name: str, bench: StageBench, knots: Knots) -> Iterator[Cell]:
    for stage in DENSE:
        for rows in knots.rows:
            yield Cell(f"{name}/{stage}/{rows}", _bind(getattr(bench, stage), rows))
    for rows in knots.grid_rows:
        for tokens in knots.kv_tokens:
            work = _bind(bench.decode_attention, rows, tokens)
            yield Cell(f"{name}/attention/{rows}x{tokens}", work)
    rows, tokens = knots.steps[0]
    yield Cell(f"{name}/opening", _bind(bench.opening, rows, tokens))
    for rows, tokens in knots.steps:
        yield Cell(f"{name}/step/{rows}x{tokens}", _bind(bench.step, rows, tokens))


def _linears(bench: StageBench, node: Node) -> Iterator[Cell]:
    for kind in node.host.linears:
        for rows in node.knots.linear_rows:
            yield Cell(f"host/linear/{kind}/{rows}", _bind(bench.linear, kind, rows))


def _bind(make: Callable[..., Sample], *sizes: object) -> Callable[[], Sample]:
    return lambda: make(*sizes)


def run_sweep(
    cells: list[Cell],
    journal: Journal,
    patience: Patience,
    around: Surroundings,
) -> Mapping[str, Summary]:
    """Measure what the journal does not have yet, with a progress bar where a person looks."""
    late_s = around.now_s() + patience.all_s
    left = [cell for cell in cells if cell.key not in journal.results]
    with tqdm(total=len(cells), initial=len(cells) - len(left), unit="", disable=None) as bar:
        for cell in left:
            around.check()
            bar.set_description(f"{cell.key:30}")
            this = patience if around.now_s() < late_s else patience.hurried()
            journal.add(cell.key, measure(cell.prepare(), this, around))
            bar.update()
    return journal.results
