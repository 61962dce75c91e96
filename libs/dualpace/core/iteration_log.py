"""A file with a line for each iteration of an engine: when it began and ended, and what it held.

For measurements; engines that are not asked for one write none. Times are CLOCK_MONOTONIC seconds,
so that files of several processes of a machine can be laid side by side. Requests are named by id;
no text and no token stands there.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dualpace.core.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration that made tokens."""

    begin_s: float
    """Before it was scheduled."""
    end_s: float
    """When its results had been applied."""
    requests: Sequence[int]
    """Those that got a token each."""
    rows: int
    """Token rows: decodes, and prompt tokens."""
    kv_tokens: int
    """Looked at by decodes."""
    route: str = ""
    """Of the host's iterations: where their dense stages ran."""


class IterationLog:
    """Written by the engine's loop; each line is complete when `note` returns."""

    def __init__(self, path: Path) -> None:
        """Begin anew. Raises OSError."""
        self._file = path.open("w", buffering=1, encoding="ascii")

    def note(self, iteration: Iteration) -> None:
        """Add a line."""
        self._file.write(json.dumps(asdict(iteration)) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_iteration_log(path: str | None) -> IterationLog | None:
    """Return the log that a setting asks for. Raises SettingsError if it cannot be written."""
    if path is None:
        return None
    try:
        return IterationLog(Path(path))
    except OSError as error:
        raise SettingsError(f"iteration_log: {error}") from None


def read_iterations(path: Path) -> list[Iteration]:
    """Return what an engine has noted, in order."""
    with path.open(encoding="ascii") as file:
        return [Iteration(**json.loads(line)) for line in file if line.endswith("\n")]
