"""A model directory as transformers writes it: config.json, safetensors, tokenizer.json."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dualpace.checkpoint.checkpoint import TensorInfo
from dualpace.checkpoint.config import ModelConfig
from dualpace.checkpoint.fields import load_json_object
from dualpace.checkpoint.fingerprint import fingerprint
from dualpace.checkpoint.generation import GenerationDefaults, read_generation_config
from dualpace.checkpoint.huggingface_config import parse_config
from dualpace.checkpoint.safetensors_files import SafetensorsFiles
from dualpace.checkpoint.tokenizer import TokenizerAssets, load_tokenizer


class HuggingFaceCheckpoint:
    """`Checkpoint` of a directory.

    Weights' headers are read when first asked for, so a gateway never needs them.
    """

    def __init__(self, path: Path) -> None:
        """Read config.json.

        Raises CheckpointError if it is absent, malformed or of an unsupported model.
        """
        self.path = path
        values = load_json_object(path / "config.json")
        self.config: ModelConfig = parse_config(values, str(path / "config.json"))
        self.generation: GenerationDefaults = read_generation_config(path, values)

    @cached_property
    def fingerprint(self) -> bytes:
        """See Checkpoint."""
        return fingerprint(self.config, self._files.infos(), self._files.raw)

    def tokenizer(self) -> TokenizerAssets:
        """See Checkpoint."""
        return load_tokenizer(self.path)

    def tensor_infos(self) -> Mapping[str, TensorInfo]:
        """See Checkpoint."""
        return self._files.infos()

    def read(self, name: str) -> NDArray[Any]:
        """See Checkpoint."""
        return self._files.read(name)

    @cached_property
    def _files(self) -> SafetensorsFiles:
        return SafetensorsFiles(self.path)
