"""Opens a model directory or a GGUF file, by what is there."""

from pathlib import Path

from dualpace.checkpoint.checkpoint import Checkpoint
from dualpace.checkpoint.gguf_checkpoint import GgufCheckpoint
from dualpace.checkpoint.huggingface import HuggingFaceCheckpoint
from dualpace.core.errors import CheckpointError


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open what `resolve_model` returned.

    That is a GGUF file, a Hugging Face directory, or a directory with one GGUF file. Raises
    CheckpointError that names the file and what is wrong with it.
    """
    path = Path(path)
    if path.is_file():
        return GgufCheckpoint(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or directory")
    if (path / "config.json").is_file():
        return HuggingFaceCheckpoint(path)
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1:
        return GgufCheckpoint(found[0])
    if found:
        names = ", ".join(file.name for file in found[:4])
        raise CheckpointError(f"{path}: {len(found)} GGUF files ({names}); name the one to serve")
    raise CheckpointError(f"{path}: neither config.json nor a GGUF file is there")
