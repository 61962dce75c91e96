"""Compute of engines that may die: no model, but KV that tells whose it is.

A token is a function of request and position, and the KV of a position is a number that follows
from both, so that whoever attends to a wrong or overwritten block is caught. It knows plans and the
arena, and no messages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dualpace.core.blocks import blocks_for
from dualpace.cpu_engine.meanwhile import Meanwhile
from dualpace.ipc.arena import Arena
from dualpace.ipc.layout import ArenaGeometry, KvDtype
from dualpace.scheduling.plan import GpuPlan, HostPlan, KvCopy, Sample, TableWrite
from dualpace.testing.two_schedulers import token_for

BLOCK_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class MortalSizes:
    """Memory and batch limits."""

    device_blocks: int = 8
    host_blocks: int = 8
    max_running: int = 3
    token_budget: int = 24
    slots: int = 4
    max_batch: int = 4

    @property
    def geometry(self) -> ArenaGeometry:
        """Of the arena."""
        return ArenaGeometry(
            num_layers=1,
            num_blocks=self.host_blocks,
            num_heads=1,
            num_kv_heads=1,
            block_size=BLOCK_SIZE,
            head_dim=1,
            kv_dtype=KvDtype.FLOAT16,
            num_slots=self.slots,
            max_blocks_per_sequence=min(self.device_blocks, self.host_blocks),
            request_bytes=128,
        )


class Killed(Exception):  # noqa: N818 - no error: what SIGKILL looks like from within
    """The process that runs dies here."""


def kv_of(request_id: int, position: int) -> int:
    """The number that stands for the KV of a position."""
    return request_id * 100_003 + position + 1


class DeviceRunner:
    """Fake compute of the gpu-engine; copies happen when they are said to be complete."""

    def __init__(self, num_blocks: int, host_kv: np.ndarray) -> None:
        self.copies_complete = True
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens elsewhere while an iteration is computed."""
        self.copies_amid_steps = 0
        """Copies to the device that began while an iteration was computed."""
        self._computing = False
        self._kv = np.zeros((num_blocks, BLOCK_SIZE), np.int64)
        self._host_kv = host_kv
        self._copies: list[tuple[int, Callable[[], None]]] = []

    def execute(self, plan: GpuPlan) -> list[Sample]:
        """Check what rows attend to, and make their tokens."""
        for copy in plan.copies_out:
            self._copy(copy.request_id, self._kv, copy.device_blocks, copy.host_blocks)
        self.copy_back(plan.copies_in)
        self._computing = True
        self.meanwhile()
        for row in plan.rows:
            for position in range(row.start, row.start + len(row.tokens)):
                _put(self._kv, row.blocks, position, kv_of(row.request_id, position))
        self.meanwhile()
        self._computing = False
        for row in plan.rows:
            _check(self._kv, row.blocks, row.request_id, row.start + len(row.tokens))
            if row.stream_to is not None:
                used = blocks_for(row.start + len(row.tokens), BLOCK_SIZE)
                self._copy(row.request_id, self._kv, row.blocks[:used], row.stream_to)
        return [
            Sample(row.request_id, token_for(row.request_id, row.start + len(row.tokens)))
            for row in plan.rows
            if row.samples
        ]

    def copy_back(self, copies: Sequence[KvCopy]) -> None:
        """Begin copies to the device, also while an iteration is computed."""
        self.copies_amid_steps += len(copies) if self._computing else 0
        for copy in copies:
            self._copy(copy.request_id, self._host_kv, copy.host_blocks, copy.device_blocks)

    def completed_transfers(self) -> list[int]:
        """Carry copies out, if they are to be complete."""
        if not self.copies_complete:
            return []
        done, self._copies = self._copies, []
        for _, carry_out in done:
            carry_out()
        return [request_id for request_id, _ in done]

    def _copy(
        self, request_id: int, source: np.ndarray, from_: Sequence[int], to: Sequence[int]
    ) -> None:
        target = self._host_kv if source is self._kv else self._kv
        pairs = list(zip(from_, to, strict=False))

        def carry_out() -> None:
            for one, other in pairs:
                target[other] = source[one]

        self._copies.append((request_id, carry_out))


class HostRunner:
    """Fake compute of the cpu-engine, which commits its steps as the real one does."""

    def __init__(self, arena: Arena, host_kv: np.ndarray) -> None:
        self.dies_after: int | None = None
        """Die in the next step when this many rows have been committed."""
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens elsewhere while a step is computed."""
        self.behind: float | None = 0.1
        """What those who come then would have to catch up with; None: nobody can join."""
        self._arena = arena
        self._kv = host_kv

    def write_tables(self, writes: tuple[TableWrite, ...]) -> None:
        """Enter newly held blocks into the block tables."""
        for write in writes:
            end = write.first + len(write.blocks)
            self._arena.block_tables[write.slot, write.first : end] = write.blocks

    def execute(self, plan: HostPlan, meanwhile: Meanwhile) -> list[Sample]:
        """Check what rows attend to, make their tokens and commit them, one row after the other."""
        self.meanwhile()
        joined = meanwhile.serve(self.behind) if meanwhile.flag[0] else ()
        samples: list[Sample] = []
        for count, row in enumerate((*plan.rows, *joined)):
            blocks = self._arena.block_tables[row.slot].tolist()
            assert row.token_id == token_for(row.request_id, row.position)
            _put(self._kv, blocks, row.position, kv_of(row.request_id, row.position))
            _check(self._kv, blocks, row.request_id, row.position + 1)
            token_id = token_for(row.request_id, row.position + 1)
            block = blocks[(row.position + 1) // BLOCK_SIZE]
            self._arena.block_tokens[block, (row.position + 1) % BLOCK_SIZE] = token_id
            if count == self.dies_after:
                raise Killed
            self._arena.sequences.advance([row.slot], [row.position + 2])
            samples.append(Sample(row.request_id, token_id))
        if self.dies_after is not None:
            raise Killed
        return samples

    def gauges(self) -> Mapping[str, float]:
        """No numbers."""
        return {}


def _put(kv: np.ndarray, blocks: Sequence[int], position: int, value: int) -> None:
    kv[blocks[position // BLOCK_SIZE], position % BLOCK_SIZE] = value


def _check(kv: np.ndarray, blocks: Sequence[int], request_id: int, end: int) -> None:
    used = kv[list(blocks[: blocks_for(end, BLOCK_SIZE)])].reshape(-1)[:end]
    assert used.tolist() == [kv_of(request_id, p) for p in range(end)], "KV was overwritten"
