"""From what a user names to a path: the demo model, a directory, a GGUF file, or a hub id."""

import re
from collections.abc import Callable
from pathlib import Path

from dualpace.checkpoint.demo import fetch_demo_model
from dualpace.checkpoint.hub import fetch_from_hub
from dualpace.core.errors import CheckpointError

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)


def resolve_model(
    source: str, *, cache_dir: Path | None = None, progress: Callable[[str], None]
) -> Path:
    """Return a path for `open_checkpoint`, downloading what is not here yet.

    source: "demo"; an existing directory or .gguf file; or a hub id, org/name or
    org/name@revision. A path that exists wins over a hub id. `cache_dir` is where the demo model
    is kept (default: the user's cache folder). `progress` gets sentences for people. Raises
    CheckpointError that says what was tried.
    """
    if source == "demo":
        return fetch_demo_model(cache_dir=cache_dir, progress=progress)
    if not source:
        raise CheckpointError("model: empty; give a path, a hub id or 'demo'")
    try:
        path = Path(source).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user, a null byte
        raise CheckpointError(f"model {source!r}: not a usable path: {error}") from None
    if exists:
        if path.is_file() and path.suffix != ".gguf":
            raise CheckpointError(
                f"{path}: a file that is not .gguf; give a model directory, a .gguf file, a hub "
                "id or 'demo'"
            )
        return path
    hub_id = _HUB_ID.fullmatch(source)
    if hub_id is None or source.endswith(".gguf"):
        raise CheckpointError(
            f"model {source!r}: {path.absolute()} does not exist, and it is not a hub id of the "
            "form org/name[@revision]"
        )
    return fetch_from_hub(hub_id["repo"], hub_id["revision"], progress=progress)
