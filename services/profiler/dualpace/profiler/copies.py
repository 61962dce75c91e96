"""Copies of KV between device and host, as the gpu-engine makes them: runs of bytes, both ways."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from dualpace.profiler.bench import Sample

_SAMPLE_S = 0.005


class CopyBench:
    """Two pieces of memory, read and written through from end to end, so that caches stay cold."""

    def __init__(
        self, device: torch.device, most_bytes: int, synchronize: Callable[[], None]
    ) -> None:
        total = max(4 * most_bytes, 64 << 20)
        on_cuda = device.type == "cuda"
        self._host = torch.ones(total, dtype=torch.uint8, pin_memory=on_cuda)
        self._device = torch.ones(total, dtype=torch.uint8, device=device)
        self._synchronize = synchronize
        self._offset = 0

    def to_host(self, size: int) -> Sample:
        """From device to host."""
        return self._sample(self._host, self._device, size)

    def to_device(self, size: int) -> Sample:
        """From host to device."""
        return self._sample(self._device, self._host, size)

    def _sample(self, destination: Tensor, source: Tensor, size: int) -> Sample:
        def one() -> None:
            self._offset += size
            if self._offset + size > len(source):
                self._offset = 0
            piece = slice(self._offset, self._offset + size)
            destination[piece].copy_(source[piece], non_blocking=True)
            self._synchronize()

        def timed(count: int) -> float:
            begin = time.perf_counter()
            for _ in range(count):
                one()
            return (time.perf_counter() - begin) / count

        timed(1)
        count = max(1, min(200, round(_SAMPLE_S / max(timed(3), 1e-7))))
        return lambda: timed(count) * 1e3
