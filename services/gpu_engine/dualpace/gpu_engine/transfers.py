"""Moves KV blocks between the device pool and the arena, many neighbours in one copy."""

from collections.abc import Iterator, Sequence

from dualpace.gpu_engine.device import Device
from dualpace.models.kv_pool import KvPool


def paired_runs(
    first: Sequence[int], second: Sequence[int], begin: int, end: int
) -> Iterator[tuple[int, int, int]]:
    """Split index range begin ..

    End - 1 into (first id, second id, length) with neighbours on both sides.
    """
    start = begin
    while start < end:
        length = 1
        while (
            start + length < end
            and first[start + length] == first[start] + length
            and second[start + length] == second[start] + length
        ):
            length += 1
        yield first[start], second[start], length
        start += length


class Transfers:
    """Copies between two pools of equal layout.

    Indices are positions in a sequence's block lists.
    """

    def __init__(self, device: Device, device_pool: KvPool, host_pool: KvPool) -> None:
        self._device = device
        self._device_pool = device_pool
        self._host_pool = host_pool

    def out(
        self,
        device_blocks: Sequence[int],
        host_blocks: Sequence[int],
        begin: int,
        end: int,
        layers: Sequence[int],
    ) -> None:
        """Enqueue device-to-host copies of blocks begin .. end - 1 in some layers."""
        runs = list(paired_runs(device_blocks, host_blocks, begin, end))
        for layer in layers:
            source, destination = self._device_pool.layer(layer), self._host_pool.layer(layer)
            for on_device, on_host, n in runs:
                self._device.copy(
                    destination[on_host : on_host + n], source[on_device : on_device + n]
                )

    def back(self, device_blocks: Sequence[int], host_blocks: Sequence[int], end: int) -> None:
        """Enqueue host-to-device copies of blocks 0 .. end - 1 in all layers."""
        runs = list(paired_runs(device_blocks, host_blocks, 0, end))
        for layer in range(self._device_pool.num_layers):
            source, destination = self._host_pool.layer(layer), self._device_pool.layer(layer)
            for on_device, on_host, n in runs:
                self._device.copy(
                    destination[on_device : on_device + n], source[on_host : on_host + n]
                )
