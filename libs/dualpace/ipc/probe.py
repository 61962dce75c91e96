"""Whether an engine is alive, for a container's startup and liveness probes.

`python -m dualpace.ipc.probe --run-dir=DIR --engine=gpu --max-age-s=120` exits with 0 if the
engine's heartbeat in the arena is fresh, else with 1 and a sentence why. Engines beat whether they
have work or not, from the loop that works; a loop that hangs falls silent. It reads the file, and
neither maps nor locks it: to the engines, a probe does not exist.

A restarted engine finds the heartbeat of the one before it: that counts for nothing. So the probe
must run where the engine's process id means what it means to the engine, as in its container.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualpace.core.clock import SystemClock
from dualpace.core.errors import ArenaError, SettingsError
from dualpace.core.request import Engine
from dualpace.core.settings import parse_settings, require, setting
from dualpace.ipc.arena import FILE_NAME
from dualpace.ipc.heartbeat import Heartbeat
from dualpace.ipc.layout import (
    ABI_VERSION,
    GEOMETRY_FIELDS,
    HEADER,
    HEARTBEAT,
    MAGIC,
    ArenaGeometry,
    KvDtype,
    layout_of,
)

_CLOCK_SLACK_S = 0.1
"""The kernel counts the starts of processes in hundredths of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Look at an engine's heartbeat."""

    run_dir: str = setting("Directory of the arena.")
    engine: str = setting("Which engine: gpu or cpu.", choices=("gpu", "cpu"))
    max_age_s: float = setting("Silence after which the engine counts as dead.", default=120.0)

    def __post_init__(self) -> None:
        require(self.max_age_s > 0, "max_age_s must be positive")


def read_heartbeat(directory: Path, engine: Engine) -> Heartbeat:
    """Return a snapshot of an engine's record.

    Raises ArenaError if there is no arena, or one of another release.
    """
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            raw = file.read(HEADER.itemsize)
            if len(raw) < HEADER.itemsize or raw[: len(MAGIC)] != MAGIC:
                raise ArenaError(f"{path} is not an arena")
            header = np.frombuffer(raw, HEADER)[0]
            if header["abi_version"] != ABI_VERSION:
                raise ArenaError(f"{path} has layout version {header['abi_version']}")
            sizes = {name: int(header[name]) for name in GEOMETRY_FIELDS}
            kv_dtype = KvDtype(sizes.pop("kv_dtype"))
            region = layout_of(ArenaGeometry(kv_dtype=kv_dtype, **sizes)).heartbeats
            file.seek(region.offset)
            beats = np.frombuffer(file.read(len(Engine) * HEARTBEAT.itemsize), HEARTBEAT)
    except OSError as error:
        raise ArenaError(f"{path}: {error.strerror}") from None
    return Heartbeat(beats[int(engine) :][:1])


def process_start_s(pid: int) -> float | None:
    """Return when a process began, on the monotonic clock; None: there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    since_boot_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # starttime: proc(5)
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return since_boot_s - asleep_s


def fault_of(
    name: str, beat: Heartbeat, now_s: float, process_s: float | None, max_age_s: float
) -> str | None:
    """Return why an engine counts as dead, or None. `process_s`: when its process began."""
    age_s = beat.age_s(now_s)
    if age_s is None:
        return f"the {name} has not begun"
    if process_s is None or process_s > beat.started_s + _CLOCK_SLACK_S:
        return f"the {name} has not begun again"
    if age_s > max_age_s:
        return f"the {name} has been silent for {age_s:.0f} s"
    return None


def main() -> int:
    """Probe once; returns the exit status."""
    try:
        settings = parse_settings(ProbeSettings, sys.argv[1:], {}, program="probe", prefix="")
        beat = read_heartbeat(Path(settings.run_dir), Engine[settings.engine.upper()])
    except (ArenaError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    fault = fault_of(
        f"{settings.engine}-engine",
        beat,
        SystemClock().now(),
        process_start_s(beat.pid),
        settings.max_age_s,
    )
    if fault is not None:
        print(fault, file=sys.stderr)
    return 0 if fault is None else 1


if __name__ == "__main__":
    sys.exit(main())
