"""KV block bookkeeping by id.

Which are free, who holds which. Bytes belong to the arena or the device pool.

One class, two instances: the gpu-engine's for its device pool, the cpu-engine's for the arena. It
knows nothing of tensors. Runs of neighbouring blocks are kept together where possible, so that one
copy can move many.
"""

import bisect
import itertools
from collections.abc import Sequence

from dualpace.core.errors import CapacityError


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


def contiguous_runs(blocks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split block ids into (offset in the list, first block, length) runs of neighbours."""
    runs: list[tuple[int, int, int]] = []
    for offset, block in enumerate(blocks):
        if runs and block == runs[-1][1] + runs[-1][2]:
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((offset, block, 1))
    return runs


class BlockLease:
    """Blocks of one holder, in sequence order. Whoever has the lease frees it, exactly once."""

    __slots__ = ("_allocator", "_blocks", "_freed")

    def __init__(self, allocator: "BlockAllocator", blocks: list[int]) -> None:
        self._allocator = allocator
        self._blocks = blocks
        self._freed = False

    @property
    def blocks(self) -> Sequence[int]:
        """The ids, in the order of the sequence. The same list while held: it only ever grows."""
        return self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def grow(self, count: int) -> list[int]:
        """Add `count` blocks and return them. Raises CapacityError, and then changes nothing."""
        assert not self._freed, "grow after free"
        added = self._allocator.take(count, after=self._blocks[-1] if self._blocks else None)
        self._blocks.extend(added)
        return added

    def free(self) -> None:
        """Give every block back."""
        assert not self._freed, "double free"
        self._freed = True
        self._allocator.give_back(self._blocks)
        self._blocks = []


class BlockAllocator:
    """Hands out block ids 0 .. num_blocks - 1, neighbours first."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self._free = num_blocks
        # Free runs by first block, by last block, and by (length, first) for best fit.
        self._length_at: dict[int, int] = {}
        self._start_before: dict[int, int] = {}
        self._by_length: list[tuple[int, int]] = []
        self._add_run(0, num_blocks)

    @property
    def free_blocks(self) -> int:
        """How many blocks nobody holds."""
        return self._free

    @property
    def used_blocks(self) -> int:
        """How many blocks are held."""
        return self.num_blocks - self._free

    def lease(self, count: int) -> BlockLease:
        """Return a lease on `count` blocks. Raises CapacityError, and then changes nothing."""
        return BlockLease(self, self.take(count))

    def lease_these(self, blocks: Sequence[int]) -> BlockLease:
        """Return a lease on blocks that were held before this allocator was made.

        Raises CapacityError if one of them does not exist or is held, and then changes nothing.
        """
        runs = contiguous_runs(sorted(blocks))
        if len(set(blocks)) < len(blocks) or not all(self._are_free(b, n) for _, b, n in runs):
            raise CapacityError("KV blocks that are said to be held are not there to be had")
        for _, start, length in runs:
            first = self._run_around(start)
            whole = self._drop_run(first)
            if first < start:
                self._add_run(first, start - first)
            if start + length < first + whole:
                self._add_run(start + length, first + whole - start - length)
        self._free -= len(blocks)
        return BlockLease(self, list(blocks))

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Take `count` blocks, continuing behind block `after` if that is free. Used by leases."""
        if count > self._free:
            raise CapacityError(f"{count} KV blocks wanted, {self._free} of {self.num_blocks} free")
        taken: list[int] = []
        if after is not None and after + 1 in self._length_at:
            self._carve(after + 1, min(count, self._length_at[after + 1]), taken)
        while len(taken) < count:
            wanted = count - len(taken)
            fit = bisect.bisect_left(self._by_length, (wanted, -1))
            length, start = self._by_length[min(fit, len(self._by_length) - 1)]
            self._carve(start, min(wanted, length), taken)
        self._free -= count
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks to the free set. Used by leases."""
        for offset, start, length in contiguous_runs(sorted(blocks)):
            del offset
            self._merge_run(start, length)
        self._free += len(blocks)

    def check_integrity(self) -> None:
        """Assert that all views of the free set agree and that its runs do not touch."""
        runs = sorted(self._length_at.items())
        assert sum(length for _, length in runs) == self._free
        assert all(a + n < b for (a, n), (b, _) in itertools.pairwise(runs))
        assert all(start >= 0 and start + n <= self.num_blocks for start, n in runs)
        assert self._start_before == {start + n: start for start, n in runs}
        assert self._by_length == sorted((n, start) for start, n in runs)

    def _run_around(self, block: int) -> int:
        """Return where the last free run begins that begins at `block` or before; -1: none does."""
        return max((start for start in self._length_at if start <= block), default=-1)

    def _are_free(self, start: int, length: int) -> bool:
        first = self._run_around(start)
        return first >= 0 and start + length <= first + self._length_at[first]

    def _add_run(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_before[start + length] = start
        bisect.insort(self._by_length, (length, start))

    def _drop_run(self, start: int) -> int:
        length = self._length_at.pop(start)
        del self._start_before[start + length]
        del self._by_length[bisect.bisect_left(self._by_length, (length, start))]
        return length

    def _carve(self, start: int, count: int, taken: list[int]) -> None:
        length = self._drop_run(start)
        taken.extend(range(start, start + count))
        if length > count:
            self._add_run(start + count, length - count)

    def _merge_run(self, start: int, length: int) -> None:
        overlap = start in self._length_at or start + length in self._start_before
        assert not overlap, "a block was freed twice"
        if start in self._start_before:
            before = self._start_before[start]
            length += self._drop_run(before)
            start = before
        if start + length in self._length_at:
            length += self._drop_run(start + length)
        self._add_run(start, length)
