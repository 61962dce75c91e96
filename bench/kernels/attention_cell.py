"""One shape of decode attention, timed beside the limits that it is held against.

Every call reads another layer of a KV pool far larger than the caches. Passes over the pool
alternate with a plain read of it and with nothing but attention's own arithmetic, so that all three
meet the same neighbours on the machine.
"""

import statistics
import time
from dataclasses import dataclass

import torch

from dualpace.kernels import (
    attention_multiply_adds,
    huge_pages,
    paged_attention_decode,
    stream_read,
)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PEAK_STEPS = 200_000


@dataclass(frozen=True)
class Cell:
    """One shape. `heads` is "query/kv"."""

    isa: str
    heads: str
    dtype: str
    head_dim: int
    block_size: int
    block_order: str
    batch: int
    context: int
    threads: int

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        heads, kv_heads = map(int, self.heads.split("/"))
        return heads // kv_heads

    @property
    def blocks_a_sequence(self) -> int:
        """Blocks that hold `context` positions."""
        return -(-self.context // self.block_size)

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """[num_blocks, 2, kv_heads, block_size, head_dim]."""
        kv_heads = int(self.heads.split("/")[1])
        num_blocks = self.batch * self.blocks_a_sequence
        return (num_blocks, 2, kv_heads, self.block_size, self.head_dim)

    @property
    def kv_elements(self) -> int:
        """Elements of keys and values that one call attends to."""
        return self.batch * self.context * 2 * int(self.heads.split("/")[1]) * self.head_dim

    def block_tables(self) -> torch.Tensor:
        """[batch, blocks_a_sequence] int32, each block in one place."""
        num_blocks = self.layer_shape[0]
        if self.block_order == "contiguous":
            blocks = torch.arange(num_blocks)
        else:
            blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
        return blocks.to(torch.int32).view(self.batch, -1)


@dataclass(frozen=True)
class Result:
    """Medians over the repeats of one cell; what is read is counted in bytes of KV."""

    call_us: float
    kv_gb_per_s: float
    read_limit_gb_per_s: float
    """A plain read of the same memory."""
    arithmetic_limit_gb_per_s: float
    """KV that can be widened and multiplied for the group's heads, out of the first cache."""

    @property
    def limit_gb_per_s(self) -> float:
        """The lower of the two limits."""
        return min(self.read_limit_gb_per_s, self.arithmetic_limit_gb_per_s)

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.kv_gb_per_s / self.limit_gb_per_s


def huge_page_bytes(size: int) -> torch.Tensor:
    """Return `size` bytes of anonymous memory, on huge pages where the kernel gives them."""
    return torch.frombuffer(huge_pages(size), dtype=torch.uint8)


def make_pool(cell: Cell, pool_bytes: int) -> torch.Tensor:
    """Return [layers, *cell.layer_shape], at least one layer; all layers hold the same values."""
    dtype = DTYPES[cell.dtype]
    layer = torch.randn(cell.layer_shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    layers = max(1, pool_bytes // layer.nbytes)
    pool = huge_page_bytes(layers * layer.nbytes).view(dtype).view(layers, *cell.layer_shape)
    pool[:] = layer
    return pool


class Attention:
    """One cell, ready to be timed."""

    def __init__(self, cell: Cell, pool_bytes: int) -> None:
        self.pool = make_pool(cell, pool_bytes)
        self._cell = cell
        self._query = torch.randn(cell.batch, int(cell.heads.split("/")[0]), cell.head_dim)
        self._tables = cell.block_tables()
        self._rows = torch.arange(cell.batch, dtype=torch.int32)
        self._lengths = torch.full((cell.batch,), cell.context, dtype=torch.int32)
        self._out = torch.empty_like(self._query)
        self.call_seconds()  # starts the threads and touches every page

    def call_seconds(self) -> float:
        """Return the mean time of a call, of one pass over all layers."""
        cell = self._cell
        start = time.perf_counter()
        for kv in self.pool:
            paged_attention_decode(
                self._query,
                kv,
                self._tables,
                self._rows,
                self._lengths,
                self._out,
                scale=cell.head_dim**-0.5,
                num_threads=cell.threads,
                isa=cell.isa,
            )
        return (time.perf_counter() - start) / len(self.pool)


def measure(cell: Cell, pool_bytes: int, repeats: int) -> Result:
    """Time one cell: each repeat is one pass over all layers, then each limit once."""
    attention = Attention(cell, pool_bytes)
    pool = attention.pool
    words = pool.view(-1).view(torch.int64)

    def multiply() -> int:
        return attention_multiply_adds(
            PEAK_STEPS, like=pool, group=cell.group, num_threads=cell.threads, isa=cell.isa
        )

    calls, reads, rates = [], [], []
    for _ in range(repeats):
        calls.append(attention.call_seconds())
        attended = time.perf_counter()
        stream_read(words, num_threads=cell.threads)
        read = time.perf_counter()
        elements = multiply()
        rates.append(elements / (time.perf_counter() - read))
        reads.append(read - attended)
    call = statistics.median(calls)
    element_size = pool.element_size()
    return Result(
        call_us=call * 1e6,
        kv_gb_per_s=cell.kv_elements * element_size / call / 1e9,
        read_limit_gb_per_s=pool.nbytes / statistics.median(reads) / 1e9,
        arithmetic_limit_gb_per_s=element_size * statistics.median(rates) / 1e9,
    )
