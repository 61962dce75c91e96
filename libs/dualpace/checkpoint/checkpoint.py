"""What an opened model offers, whichever kind of file it came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualpace.checkpoint.config import ModelConfig
from dualpace.checkpoint.generation import GenerationDefaults
from dualpace.checkpoint.tokenizer import TokenizerAssets


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A stored tensor, under its Hugging Face name."""

    name: str
    dtype: str
    """How it is stored: F32, F16, BF16, or a ggml type such as Q4_1."""
    shape: tuple[int, ...]
    """As torch has it: a linear weight is [out, in]."""


class Checkpoint(Protocol):
    """A model on disk. Opening one reads headers only; tensors are read one at a time."""

    @property
    def path(self) -> Path:
        """The directory or file."""
        ...

    @property
    def config(self) -> ModelConfig:
        """What the model is."""
        ...

    @property
    def generation(self) -> GenerationDefaults:
        """Sampling defaults and end tokens that come with the model."""
        ...

    @property
    def fingerprint(self) -> bytes:
        """32 bytes that identify config and weights; equal for copies of a model."""
        ...

    def tokenizer(self) -> TokenizerAssets:
        """Load the tokenizer. Raises CheckpointError if there is none that can be used."""
        ...

    def tensor_infos(self) -> Mapping[str, TensorInfo]:
        """Return every stored tensor by its Hugging Face name."""
        ...

    def read(self, name: str) -> NDArray[Any]:
        """Return a tensor's values as float32 or float16, or as uint16 that holds bfloat16 bits.

        The array may be a copy-on-write view of the mapped file. Quantised types come dequantised
        to float32.
        """
        ...


def float32_values(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return what `Checkpoint.read` gave as float32; exact for all three kinds."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)
