"""Reads stacked tensors of a checkpoint into a device's memory, and tells how far it has come."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dualpace.checkpoint import Checkpoint
from dualpace.models.spec import ModelSpec, TensorSpec, tensor_specs


class WeightReader:
    """Converts one stored tensor at a time; beside the result only that tensor is held."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: Callable[[float], None] | None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._checkpoint = checkpoint
        self._progress = progress
        self._total = sum(_elements(tensor) for tensor in tensor_specs(spec))
        self._done = 0

    def stacked(self, specs: Sequence[TensorSpec]) -> Tensor:
        """Return tensors stacked along their first axis, in the reader's dtype, on its device."""
        rows = sum(spec.shape[0] for spec in specs)
        result = torch.empty((rows, *specs[0].shape[1:]), dtype=self.dtype, device=self.device)
        at = 0
        for spec in specs:
            result[at : at + spec.shape[0]].copy_(self._read(spec.name))
            at += spec.shape[0]
            self._done += _elements(spec)
            if self._progress is not None:
                self._progress(self._done / self._total)
        return result

    def _read(self, name: str) -> Tensor:
        # Files may put tensors at odd addresses, where torch must not be sent.
        array = np.require(self._checkpoint.read(name), requirements=["A", "W"])
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def _elements(spec: TensorSpec) -> int:
    return int(np.prod(spec.shape))
