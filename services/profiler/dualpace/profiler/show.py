"""`dualpace profile show FILE [--out=PNG]`: a profile's figure, and its numbers in words."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dualpace.core.errors import DualPaceError, SettingsError
from dualpace.profiler.figures import draw, sources
from dualpace.profiles import read_profile
from dualpace.scheduling.profile import Profile

_USAGE = "usage: dualpace profile show FILE [--out=PNG]"


def show_command(argv: Sequence[str]) -> int:
    """Draw; returns the exit status."""
    if set(argv) & {"-h", "--help"}:
        sys.stdout.write(_USAGE + "\n")
        return 0
    try:
        path, out = _arguments(argv)
        profile = read_profile(path)
        try:
            draw(profile, out)
        except (OSError, ValueError) as error:
            raise SettingsError(f"--out={out}: {error}") from None
    except DualPaceError as error:
        sys.stderr.write(f"dualpace profile show: {error}\n")
        return 2
    sys.stdout.writelines(line + "\n" for line in (*describe(profile), f"drawn: {out}"))
    return 0


def describe(profile: Profile) -> Iterator[str]:
    """Yield what a person wants to know first."""
    yield f"model    {profile.model.name}"
    yield f"host     {profile.host_name}"
    yield f"device   {profile.gpu_name}"
    yield f"sources  {sources(profile)}"
    for threshold in profile.thresholds:
        yield f"{threshold.name} = {threshold.value:g} {threshold.unit}: {threshold.why}"
    for step in profile.evidence.get("steps", ()):
        yield (
            f"check    {step['side']}, {step['rows']} rows, {step['kv_tokens']} KV tokens:"
            f" tables say {step['predicted_ms']:g} ms, an iteration took {step['measured_ms']:g} ms"
        )


def _arguments(argv: Sequence[str]) -> tuple[Path, Path]:
    flags = [word for word in argv if word.startswith("-")]
    files = [word for word in argv if not word.startswith("-")]
    if len(files) != 1 or len(flags) > 1 or not all(f.startswith("--out=") for f in flags):
        raise SettingsError(_USAGE)
    path = Path(files[0])
    return path, Path(flags[0].removeprefix("--out=")) if flags else path.with_suffix(".png")
