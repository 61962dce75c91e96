"""Whether an engine is alive, for a container's startup and liveness probes.

`python -m dualpace.ipc.probe --run-dir=DIR --engine=gpu --max-age-s=120` exits with 0 if the
engine's heartbeat in the arena is fresh, else with 1 and a sentence why. Engines beat whether they
have work or not, from the loop that works; a loop that hangs falls silent. It reads the file, and
neither maps nor locks it: to the engines, a probe does not exist.

The cpu-engine also counts as dead when the gpu-engine has been silent for as long: it holds the
arena that a restarted gpu-engine would have to make anew, and must let go of it.
"""

import sys
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Look at an engine's heartbeat."""

    run_dir: str = setting("Directory of the arena.")
    engine: str = setting("Which engine: gpu or cpu.", choices=("gpu", "cpu"))
    max_age_s: float = setting("Silence after which the engine counts as dead.", default=120.0)

    def __post_init__(self) -> None:
        require(self.max_age_s > 0, "max_age_s must be positive")


def heartbeat_ages(directory: Path, now_s: float) -> dict[Engine, float | None]:
    """Return seconds since each engine's last beat; None: it has not beaten yet.

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
    return {engine: Heartbeat(beats[int(engine) :][:1]).age_s(now_s) for engine in Engine}


def fault_of(engine: Engine, ages: dict[Engine, float | None], max_age_s: float) -> str | None:
    """Return why an engine counts as dead, or None."""
    watched = (Engine.GPU,) if engine is Engine.GPU else (Engine.CPU, Engine.GPU)
    for each in watched:
        age_s, name = ages[each], f"{each.name.lower()}-engine"
        if age_s is None:
            return f"the {name} has not begun"
        if age_s > max_age_s:
            return f"the {name} has been silent for {age_s:.0f} s"
    return None


def main() -> int:
    """Probe once; returns the exit status."""
    try:
        settings = parse_settings(ProbeSettings, sys.argv[1:], {}, program="probe", prefix="")
        ages = heartbeat_ages(Path(settings.run_dir), SystemClock().now())
    except (ArenaError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    fault = fault_of(Engine[settings.engine.upper()], ages, settings.max_age_s)
    if fault is not None:
        print(fault, file=sys.stderr)
    return 0 if fault is None else 1


if __name__ == "__main__":
    sys.exit(main())
