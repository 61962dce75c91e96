"""What this engine sets out to reach against its peers, and whether measured speeds do. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from cpu.cells import Cell
from cpu.engines import OURS

Speeds = Mapping[tuple[str, str, Cell], float]
"""Tokens per second by engine, format and cell."""

SIXTEEN_BIT = ("bfloat16", "float16")


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
    wanted: float

    @property
    def ratio(self) -> float:
        """Ours to the peer's."""
        return self.ours / self.peer_speed

    @property
    def met(self) -> bool:
        """Whether the ratio is what is wanted."""
        return self.ratio >= self.wanted


def reached(speeds: Speeds) -> list[Target]:
    """Return every target that these speeds say something about.

    float32: 1.3 times the best peer at batch 32 and more, 1.05 times below. 16-bit weights and KV
    (ours in bfloat16), batch 32 and more: twice llama.cpp's best 16-bit format, 1.2 times
    OpenVINO's best with 16-bit KV. int8 weights, batch 8 and more: 1.1 times OpenVINO's.
    """
    found = []
    for cell in dict.fromkeys(cell for _, _, cell in speeds):
        large = cell.batch >= 32
        every = _peers(speeds, ("float32",))
        wanted = 1.3 if large else 1.05
        found.append(_compare(speeds, "float32", cell, every, "float32, best peer", wanted))
        if large:
            llama = _peers(speeds, SIXTEEN_BIT, "llama.cpp")
            openvino = _peers(speeds, SIXTEEN_BIT, "openvino-genai")
            found.append(_compare(speeds, "bfloat16", cell, llama, "16-bit, llama.cpp", 2.0))
            found.append(_compare(speeds, "bfloat16", cell, openvino, "16-bit, OpenVINO", 1.2))
        if cell.batch >= 8:
            openvino = _peers(speeds, ("int8",), "openvino-genai")
            found.append(_compare(speeds, "int8", cell, openvino, "int8, OpenVINO", 1.1))
    return [target for target in found if target is not None]


def _peers(
    speeds: Speeds, formats: tuple[str, ...], engine: str | None = None
) -> set[tuple[str, str]]:
    return {
        (name, format_)
        for name, format_, _ in speeds
        if name != OURS and format_ in formats and engine in {None, name}
    }


def _compare(  # noqa: PLR0917 - a row of a table
    speeds: Speeds,
    format_: str,
    cell: Cell,
    peers: set[tuple[str, str]],
    name: str,
    wanted: float,
) -> Target | None:
    ours = speeds.get((OURS, format_, cell))
    timed = {peer: speeds[*peer, cell] for peer in peers if (*peer, cell) in speeds}
    if ours is None or not timed:
        return None
    best = max(timed, key=lambda peer: timed[peer])
    return Target(
        name=name,
        batch=cell.batch,
        context=cell.context,
        ours=ours,
        peer=" ".join(best),
        peer_speed=timed[best],
        wanted=wanted,
    )
