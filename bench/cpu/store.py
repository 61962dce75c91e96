"""Timings and limits as lines of a file: one comparison, measured in several sittings.

A machine is rarely left alone for as long as all cells of all engines take: each sitting appends
what it measured, and the summary covers the file.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cpu.cells import Cell, Timing
from cpu.limits import Limits, combined


@dataclass
class Store:
    """What has been measured; `path` is appended to, or None: nothing is kept."""

    path: Path | None
    timings: dict[tuple[str, str, Cell], list[Timing]] = field(default_factory=dict)
    limits: list[Limits] = field(default_factory=list)
    moments: dict[tuple[str, str, Cell], list[int]] = field(default_factory=dict)
    """Of each timing, how many limits had been measured before it."""
    missing: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why an engine has no figures, or not all, in a format."""

    @classmethod
    def open(cls, path: Path | None, header: dict[str, Any]) -> "Store":
        """Read what is there. Raises ValueError if that was measured under another header."""
        store = cls(path)
        if path is None:
            return store
        if not path.exists():
            path.write_text(json.dumps({"header": header}) + "\n", encoding="utf-8")
            return store
        first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if first != {"header": header}:
            raise ValueError(f"{path}: was measured with {first['header']}, this is {header}")
        for line in lines:
            store._take(line)
        return store

    def add(self, timing: Timing) -> None:
        """Keep one timing."""
        self._append({"timing": asdict(timing)})

    def add_limits(self, limits: Limits) -> None:
        """Keep the limits of a moment."""
        self._append({"limits": asdict(limits)})

    def add_missing(self, engine: str, format_: str, reason: str) -> None:
        """Keep why figures are missing."""
        self._append({"missing": [engine, format_, reason]})

    def limits_around(self, engine: str, format_: str, cell: Cell) -> list[Limits]:
        """Return of each timing the better of the limits right before and right after it.

        The better: a limit that other work on the machine held down for a moment is none.
        """
        moments = self.moments[engine, format_, cell]
        beside = (self.limits[max(0, moment - 1) : moment + 1] for moment in moments)
        return [combined(limits, max) for limits in beside if limits]

    def _append(self, line: dict[str, Any]) -> None:
        self._take(line)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _take(self, line: dict[str, Any]) -> None:
        ((kind, values),) = line.items()
        if kind == "limits":
            self.limits.append(Limits(**values))
        elif kind == "missing":
            engine, format_, reason = values
            self.missing[engine, format_] = reason
        else:
            values["tokens_per_s"] = tuple(values["tokens_per_s"])
            timing = Timing(**values)
            key = (timing.engine, timing.format, Cell(timing.batch, timing.context))
            self.timings.setdefault(key, []).append(timing)
            self.moments.setdefault(key, []).append(len(self.limits))
