"""The tensors of a Dense Assist channel: the arena's bytes, no copy."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dualpace.ipc.assist_channel import AssistChannel


@dataclass(frozen=True, slots=True)
class AssistTensors:
    """Views in the data type of the KV cache; R is the most rows of a micro-batch."""

    attention: Tensor
    """[R, heads, head_dim]: what the host's attention gave."""
    q: Tensor
    """[R, heads, head_dim], normalised and rotated."""
    k: Tensor
    """[R, kv_heads, head_dim], likewise."""
    v: Tensor
    """[R, kv_heads, head_dim]"""

    @classmethod
    def of(cls, channel: AssistChannel, dtype: torch.dtype) -> "AssistTensors":
        """Return the tensors of a channel."""
        geometry = channel.geometry

        def view(data: npt.NDArray[np.uint8], heads: int) -> Tensor:
            shape = (geometry.rows, heads, geometry.head_dim)
            return torch.from_numpy(data).view(dtype).view(shape)

        return cls(
            attention=view(channel.attention, geometry.num_heads),
            q=view(channel.q, geometry.num_heads),
            k=view(channel.k, geometry.num_kv_heads),
            v=view(channel.v, geometry.num_kv_heads),
        )
