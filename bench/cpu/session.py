"""One engine's process, kept alive: loads its model once, and times a cell whenever it is asked.

Several that are alive at once can be asked in turn, within seconds of each other, where a machine's
speed changes from minute to minute. Idle ones wait for a line. Knows no engine.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic

from cpu.avx512_watch import Avx512Watch
from cpu.cells import FAILED, READY, Cell, Timing, read_timing, write_cell


class SessionError(RuntimeError):
    """A process that ended, or did not answer in time; nothing more can be asked of it."""


class Session:
    """A process that runs `cpu.cells.report`. Use it as a context: leaving ends the process."""

    def __init__(
        self, command: Sequence[str | Path], variables: Mapping[str, str], limit_s: float
    ) -> None:
        """Start the process. `limit_s` is how long its load, or one cell, may take."""
        self._limit_s = limit_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(  # noqa: S603
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=dict(variables),
            start_new_session=True,
        )
        self._lines: Queue[str | None] = Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        self._watch = Avx512Watch(self._process.pid)
        self._watch.start()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and what it started. May be called again."""
        self._watch.close()
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def wait_ready(self) -> None:
        """Return once the model is loaded. Raises SessionError."""
        self._line_of(READY)

    def measure(self, cell: Cell) -> Timing | None:
        """Time one cell; None: it failed, and `last_error` says why. Raises SessionError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(write_cell(cell))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SessionError(self.last_error()) from None
        timing = read_timing(self._line_of("CELL ", FAILED))
        self._watch.look()
        return timing and replace(timing, avx512=self._watch.seen)

    def last_error(self) -> str:
        """Return the last line that the process wrote as an error."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "ended without a word"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _line_of(self, *beginnings: str) -> str:
        deadline = monotonic() + self._limit_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - monotonic()))
            except Empty:
                raise SessionError(f"did not answer within {self._limit_s:.0f} s") from None
            if line is None:
                raise SessionError(self.last_error())
            if line.startswith(beginnings):
                return line
