"""Model directories from the Hugging Face hub, through its own client and cache."""

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from dualpace.core.errors import CheckpointError

_FILES = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
]


def fetch_from_hub(repo: str, revision: str | None, *, progress: Callable[[str], None]) -> Path:
    """Return the local copy of a hub model, downloading what is missing of it.

    Raises CheckpointError if the hub cannot be reached and nothing is cached, or if the model does
    not exist or may not be read with the token at hand.
    """
    name = repo if revision is None else f"{repo}@{revision}"
    progress(f"looking up {name} on the Hugging Face hub")
    try:
        path = Path(snapshot_download(repo, revision=revision, allow_patterns=_FILES))
    except GatedRepoError:
        raise CheckpointError(
            f"{name}: access to this model must be asked for on the hub; then set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"{name}: {Path(repo).absolute()} does not exist, and neither does such a model on the "
            "hub (or it is private: set HF_TOKEN)"
        ) from None
    except RevisionNotFoundError:
        raise CheckpointError(
            f"{name}: the model exists on the hub, but not this revision"
        ) from None
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"{name}: {Path(repo).absolute()} does not exist, the hub's cache does not hold the "
            "whole model, and the hub cannot be reached (or HF_HUB_OFFLINE forbids it)"
        ) from None
    except Exception as error:  # noqa: BLE001 - transports have errors of their own
        raise CheckpointError(f"{name}: download failed: {error}") from None
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{name}: the repository has no config.json. Of GGUF repositories, download the "
            "wanted .gguf file and give its path"
        )
    return path
