"""Carries out copies between device and arena, and tells when they are complete.

Knows no compute, but for its order: copies wait for all plans before the running one, which may
touch blocks that were freed since, and not for the running one itself, which touches none of theirs
but what it streams.
"""

from collections.abc import Iterable, Sequence

from dualpace.core.blocks import blocks_for
from dualpace.gpu_engine.device import Device
from dualpace.gpu_engine.transfers import Transfers
from dualpace.models.kv_pool import KvPool
from dualpace.scheduling.plan import GpuPlan, GpuRow, KvCopy


class PlanCopies:
    """Copies between the device's pool and the arena."""

    def __init__(self, device: Device, device_pool: KvPool, host_pool: KvPool) -> None:
        self._device = device
        self._pool = device_pool
        self._transfers = Transfers(device, device_pool, host_pool)
        self._transferred: list[int] = []
        device.begin_copies()  # behind whatever has filled the pools

    def start(self, plan: GpuPlan) -> None:
        """Begin the whole-sequence copies of a plan, out and in."""
        size = self._pool.block_size
        layers = range(self._pool.num_layers)
        for copy in plan.copies_out:
            end = blocks_for(copy.num_positions, size)
            self._transfers.out(copy.device_blocks, copy.host_blocks, 0, end, layers)
            self._finish_one(copy.request_id)
        self.back(plan.copies_in)

    def back(self, copies: Iterable[KvCopy]) -> None:
        """Begin copies to the device, beside the compute of the plan that runs now, if one does."""
        for copy in copies:
            end = blocks_for(copy.num_positions, self._pool.block_size)
            self._transfers.back(copy.device_blocks, copy.host_blocks, end)
            self._finish_one(copy.request_id)

    def stream(self, layer: int, rows: Sequence[GpuRow]) -> None:
        """Copy the blocks that the rows' tokens touched in this layer to the arena."""
        self._device.begin_copies()
        size = self._pool.block_size
        for row in rows:
            assert row.stream_to is not None
            begin = row.start // size
            end = blocks_for(row.start + len(row.tokens), size)
            self._transfers.out(row.blocks, row.stream_to, begin, end, (layer,))

    def finish(self, rows: Iterable[GpuRow]) -> None:
        """Note that a plan's compute is enqueued, and every layer of these rows streamed."""
        for row in rows:
            self._finish_one(row.request_id)
        self._device.begin_copies()

    def completed(self) -> list[int]:
        """Return the request of each copy that has completed since the last call."""
        self._device.poll()
        done, self._transferred = self._transferred, []
        return done

    def _finish_one(self, request_id: int) -> None:
        self._device.when_copied(lambda: self._transferred.append(request_id))
