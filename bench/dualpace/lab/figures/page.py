"""Writing a figure: the picture, its numbers, and on both what they are."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = {
    "dualpace": "tab:blue",
    "neo": "tab:red",
    "neo-measured": "tab:orange",
    "vllm": "tab:gray",
    "vllm-defaults": "black",
}


@dataclass(frozen=True, slots=True)
class Book:
    """Where figures go, and what stands under each."""

    folder: Path
    label: str

    def page(self, panels: int, title: str) -> tuple[Figure, list[Axes]]:
        """Return an empty figure with some panels side by side."""
        figure = Figure(figsize=(5.0 * panels, 3.8), layout="constrained")
        axes = [figure.add_subplot(1, panels, i + 1) for i in range(panels)]
        figure.suptitle(title)
        figure.supxlabel(self.label, fontsize=7, color="gray")
        return figure, axes

    def save(self, name: str, figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the picture and its numbers."""
        figure.savefig(self.folder / f"{name}.png", dpi=150, metadata={"Software": None})
        self.table(name, rows)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write numbers alone."""
        with (self.folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            file.write(f"# {self.label}\n")
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(
                {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
                for row in rows
            )
