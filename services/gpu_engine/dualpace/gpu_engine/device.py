"""What differs between a CUDA device and the CPU standing in for one: memory, streams, pinning.

Copies between the device's KV pool and the arena are enqueued behind the compute that wrote them
and awaited by polling, so that the engine's thread never blocks on a transfer.
"""

import logging
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

import torch
from torch import Tensor

log = logging.getLogger(__name__)

_REGISTER_SLAB_BYTES = 4 << 30
"""Registering takes seconds per tens of GiB, and single huge registrations fail."""


class Device(Protocol):
    """A place to compute, and its way to host memory."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors live."""
        ...

    def free_bytes(self) -> int:
        """Memory that is free for a KV pool now."""
        ...

    def pin(self, memory: Tensor) -> None:
        """Make host memory fit for asynchronous copies, where possible; logs whether it is."""
        ...

    def unpin(self, memory: Tensor) -> None:
        """Undo `pin`."""
        ...

    def begin_copies(self) -> None:
        """Order the copies that follow behind all compute enqueued so far."""
        ...

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Enqueue a copy between device and host; equal shapes and dtypes."""
        ...

    def when_copied(self, callback: Callable[[], None]) -> None:
        """Call back, from `poll`, once every copy enqueued so far is complete."""
        ...

    def poll(self) -> bool:
        """Run due callbacks; returns whether copies are still under way."""
        ...

    def lend(
        self,
        work: Callable[[], Tensor | None],
        finish: Callable[[Tensor | None, Exception | None], None],
    ) -> None:
        """Run someone else's work beside the engine's own, in order of the calls.

        `finish` gets the result, or what `work` raised, once the work is complete; perhaps in
        another thread.
        """
        ...


class CpuDevice:
    """The CPU in the role of the device: the same code path, copies complete at once."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()

    @property
    def torch_device(self) -> torch.device:
        """Where tensors live."""
        return torch.device("cpu")

    def free_bytes(self) -> int:
        """A modest default: host memory belongs to the arena."""
        return 512 << 20

    def pin(self, memory: Tensor) -> None:
        """Nothing to do."""
        del memory

    def unpin(self, memory: Tensor) -> None:
        """Nothing to do."""
        del memory

    def begin_copies(self) -> None:
        """Compute is complete when the call that does it returns."""

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy now."""
        destination.copy_(source)

    def when_copied(self, callback: Callable[[], None]) -> None:
        """Call back at the next poll."""
        self._due.append(callback)

    def poll(self) -> bool:
        """Run due callbacks."""
        while self._due:
            self._due.popleft()()
        return False

    def lend(
        self,
        work: Callable[[], Tensor | None],
        finish: Callable[[Tensor | None, Exception | None], None],
    ) -> None:
        """Run it now."""
        finish(*_outcome(work))


class CudaDevice:
    """One CUDA device: copies on a stream of their own, in both directions ordered by events."""

    def __init__(self, index: int, memory_fraction: float) -> None:
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        self._memory_fraction = memory_fraction
        self._copy_stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._pending: deque[tuple[torch.cuda.Event, Callable[[], None]]] = deque()
        # Of higher priority: what is lent is short, and someone waits for it.
        self._lent_stream = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]
        self._lent: SimpleQueue[Callable[[], None]] = SimpleQueue()
        Thread(target=self._finish_lent, name="lent", daemon=True).start()

    @property
    def torch_device(self) -> torch.device:
        """Where tensors live."""
        return self._device

    def free_bytes(self) -> int:
        """What is left of the configured share of the device's memory."""
        free, total = torch.cuda.mem_get_info(self._device)
        return max(0, free - int(total * (1.0 - self._memory_fraction)))

    def pin(self, memory: Tensor) -> None:
        """Register host memory slab by slab; on failure it stays pageable and copies are slower."""
        flat = memory.view(-1).view(torch.uint8)
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for start in range(0, flat.numel(), _REGISTER_SLAB_BYTES):
            slab = flat[start : start + _REGISTER_SLAB_BYTES]
            status = cudart.cudaHostRegister(slab.data_ptr(), slab.numel(), 0)
            if int(status) != 0:
                log.warning(
                    "cudaHostRegister failed with %s at %d MiB of the arena: it stays pageable,"
                    " transfers are slower",
                    status,
                    start >> 20,
                )
                self._unregister(flat[:start])
                return
        log.info("the arena is pinned: copies are asynchronous")

    def unpin(self, memory: Tensor) -> None:
        """Unregister host memory."""
        torch.cuda.synchronize(self._device)
        self._unregister(memory.view(-1).view(torch.uint8))

    def begin_copies(self) -> None:
        """Order the copies that follow behind all compute enqueued so far."""
        self._copy_stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Enqueue a copy on the copy stream."""
        with torch.cuda.stream(self._copy_stream):
            destination.copy_(source, non_blocking=True)

    def when_copied(self, callback: Callable[[], None]) -> None:
        """Call back, from `poll`, once every copy enqueued so far is complete."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._copy_stream)
        self._pending.append((event, callback))

    def poll(self) -> bool:
        """Run due callbacks, in order; returns whether copies are still under way."""
        while self._pending and self._pending[0][0].query():  # type: ignore[no-untyped-call]
            self._pending.popleft()[1]()
        return bool(self._pending)

    def lend(
        self,
        work: Callable[[], Tensor | None],
        finish: Callable[[Tensor | None, Exception | None], None],
    ) -> None:
        """Enqueue it on a stream of its own; a thread waits for its end."""
        with torch.cuda.stream(self._lent_stream):
            result, error = _outcome(work)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._lent_stream)

        def complete() -> None:
            event.synchronize()
            with torch.cuda.stream(self._lent_stream):
                finish(result, error)

        self._lent.put(complete)

    def _finish_lent(self) -> None:
        while True:
            self._lent.get()()

    @staticmethod
    def _unregister(flat: Tensor) -> None:
        for start in range(0, flat.numel(), _REGISTER_SLAB_BYTES):
            torch.cuda.cudart().cudaHostUnregister(flat[start:].data_ptr())  # type: ignore[no-untyped-call]


def _outcome(work: Callable[[], Tensor | None]) -> tuple[Tensor | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - told to who lent
        return None, error
