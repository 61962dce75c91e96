"""What this engine sets out to reach against its peers, and whether measured speeds do. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cpu.cells import Cell
from cpu.engines import OURS

Rounds = Sequence[float]
"""Tokens per second of each round, in order."""
Speeds = Mapping[tuple[str, str, Cell], Rounds]
"""By engine, format and cell."""
Most = Callable[[str, Cell], float]
"""Tokens per second that the machine's limits allow this engine, by format and cell."""


@dataclass(frozen=True)
class Rule:
    """A ratio that is wanted of one format, at the batches named."""

    name: str
    format: str
    """Ours."""
    peer: str | None
    """None: whichever is the fastest."""
    peer_formats: tuple[str, ...]
    least_batch: int
    most_batch: int
    wanted: float


SIXTEEN_BIT = ("bfloat16", "float16")
RULES = (
    Rule("float32, best peer", "float32", None, ("float32",), 1, 31, 1.05),
    Rule("float32, best peer", "float32", None, ("float32",), 32, 1 << 31, 1.3),
    Rule("16-bit, llama.cpp", "bfloat16", "llama.cpp", SIXTEEN_BIT, 32, 1 << 31, 2.0),
    Rule("16-bit, OpenVINO", "bfloat16", "openvino-genai", SIXTEEN_BIT, 32, 1 << 31, 1.2),
    Rule("int8, OpenVINO", "int8", "openvino-genai", ("int8",), 8, 1 << 31, 1.1),
)
"""16-bit: weights and KV, against the best of the peer's formats of that width."""


@dataclass(frozen=True)
class Target:
    """One ratio that is wanted, in one cell."""

    name: str
    batch: int
    context: int
    ours: float
    peer: str
    """The engine and format that it is held against."""
    peer_speed: float
    ratio: float
    """Ours to the peer's, see `ratio_of`."""
    wanted: float
    most: float
    """Tokens per second that the machine's limits allow us."""

    @property
    def met(self) -> bool:
        """Whether the ratio is what is wanted."""
        return self.ratio >= self.wanted

    @property
    def reach(self) -> float:
        """The best ratio possible: that of the machine's limits to what the peer was timed at."""
        return self.most / self.peer_speed


def ratio_of(ours: Rounds, theirs: Rounds) -> float:
    """Return how many times as fast ours is.

    The median over the rounds, where both took part in the same number of them: what differs from
    round to round, as the machine's bandwidth does, differs for both. Else of their medians.
    """
    if len(ours) == len(theirs):
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return statistics.median(ours) / statistics.median(theirs)


def reached(speeds: Speeds, most: Most) -> list[Target]:
    """Return every target that these speeds say something about."""
    cells = dict.fromkeys(cell for _, _, cell in speeds)
    found = (_compare(speeds, most, rule, cell) for cell in cells for rule in RULES)
    return [target for target in found if target is not None]


def _compare(speeds: Speeds, most: Most, rule: Rule, cell: Cell) -> Target | None:
    peers = {
        f"{engine} {format_}": rounds
        for (engine, format_, at), rounds in speeds.items()
        if at == cell
        and engine != OURS
        and engine == (rule.peer or engine)
        and format_ in rule.peer_formats
    }
    ours = speeds.get((OURS, rule.format, cell))
    if ours is None or not peers or not rule.least_batch <= cell.batch <= rule.most_batch:
        return None
    ratios = {peer: ratio_of(ours, rounds) for peer, rounds in peers.items()}
    best = min(ratios, key=lambda peer: ratios[peer])
    return Target(
        name=rule.name,
        batch=cell.batch,
        context=cell.context,
        ours=statistics.median(ours),
        peer=best,
        peer_speed=statistics.median(peers[best]),
        ratio=ratios[best],
        wanted=rule.wanted,
        most=most(rule.format, cell),
    )
