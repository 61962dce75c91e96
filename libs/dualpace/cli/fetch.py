"""`dualpace fetch`: brings a model to a place where services look for it, before they start.

The download is the hub client's, into HF_HOME; services get a symbolic link of a fixed name to
it, since the path of a snapshot is not known beforehand.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dualpace.checkpoint import resolve_model
from dualpace.core.errors import CheckpointError, DualPaceError
from dualpace.core.settings import parse_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """Download a model, or find it, and link to it."""

    model: str = setting("Model directory, GGUF file, hub id (org/name[@revision]), or demo.")
    link: str = setting("Symbolic link to make or replace.")


def fetch_command(argv: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    try:
        settings = parse_settings(FetchSettings, argv, {}, program="dualpace fetch", prefix="")
        path = resolve_model(settings.model, progress=lambda line: print(line, flush=True))
        place_link(Path(settings.link), path)
    except DualPaceError as error:
        print(f"dualpace fetch: {error}", file=sys.stderr)
        return 2
    print(f"{settings.link} -> {path}")
    return 0


def place_link(link: Path, target: Path) -> None:
    """Make or replace a link in one step, so that no reader finds none. Raises CheckpointError."""
    draft = link.with_name(f"{link.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        draft.symlink_to(target.absolute())
        draft.replace(link)
    except OSError as error:
        raise CheckpointError(f"{link}: {error.strerror}") from None
