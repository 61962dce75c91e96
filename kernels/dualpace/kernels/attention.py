"""Decode attention over a paged KV cache in host memory.

Knows nothing of sequences, blocks being free, or models: shapes and ids are the caller's.
"""

from typing import Protocol

from dualpace.kernels import _native

LEAST_TILE_ROWS = _native.LEAST_TILE_ROWS
"""Fewest rows of a product that amxbf16 multiplies on tiles."""
LEAST_TILE_HEADS = _native.LEAST_TILE_HEADS
"""Fewest query heads on a kv head whose attention amxbf16 computes on tiles."""


class HostArray(Protocol):
    """A PyTorch CPU tensor or a NumPy array: contiguous, in host memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (device type, device id); part of the array exchange protocol."""
        ...


def paged_attention_decode(  # noqa: PLR0917 - in the order of every attention op
    query: HostArray,
    kv: HostArray,
    block_tables: HostArray,
    rows: HostArray,
    lengths: HostArray,
    out: HostArray,
    *,
    scale: float,
    num_threads: int,
    window: int = 0,
    rounding: bool = False,
    isa: str | None = None,
) -> None:
    """Write softmax(scale * query Kᵀ) V of one query token for each of `batch` sequences to `out`.

    Sequence b attends to positions max(0, lengths[b] - window) .. lengths[b] - 1, or from 0 if
    `window` is 0. Position p lies in block `block_tables[rows[b], p // block_size]`, slot
    `p % block_size`. Length 0 gives zeros. Query head h reads kv head `h // (heads // kv_heads)`.
    Arithmetic is fp32 whatever `kv` holds, `rounding` aside. For a given instruction set an output
    row depends on its own sequence alone, to the last bit: not on `num_threads`, nor on the rest of
    the batch.

    Arguments:
        query: [batch, heads, head_dim] float32; head_dim a multiple of 8, up to 256.
        kv: [num_blocks, 2, kv_heads, block_size, head_dim] float32, float16 or bfloat16, keys then
            values; block_size a multiple of 16. What no sequence attends to has no influence.
        block_tables: [num_tables, table_width] int32. Entries that no sequence needs may hold
            anything.
        rows: [batch] int32, the row of `block_tables` of each sequence.
        lengths: [batch] int32.
        out: [batch, heads, head_dim] float32, overwritten. Must not overlap the other arrays.
        scale: Factor of the scores, 1/sqrt(head_dim) as a rule.
        num_threads: Threads to share the work, the caller's included. Pass the same number each
            time, PyTorch's: the pool is PyTorch's own, and a smaller team ends surplus threads.
        window: Sliding window in positions; 0: none.
        rounding: Allow queries and softmax weights to be rounded to bfloat16, where `kv` is of that
            type and the instruction set has tiles (amxbf16): that is done where `LEAST_TILE_HEADS`
            query heads or more share a kv head.
        isa: Force an instruction set, one of `capabilities().available`; None: the best allowed.

    Raises ValueError naming the argument, its size or value, and what is allowed; TypeError for
    what is no array. The interpreter lock is released meanwhile: don't resize or free the arrays
    from another thread.

    """
    _native.paged_attention_decode(
        query,
        kv,
        block_tables,
        rows,
        lengths,
        out,
        scale=scale,
        window=window,
        rounding=rounding,
        num_threads=num_threads,
        isa=isa,
    )


def attention_multiply_adds(
    steps: int, *, like: HostArray, group: int, num_threads: int, isa: str | None = None
) -> int:
    """Do nothing but attention's multiply-adds on each thread; return how many elements of KV.

    Each element, of the dtype of `like`, is widened to fp32 once and multiplied once for each of
    `group` query heads (eight at most), out of the first cache. Time a call to get the arithmetic
    limit of decode attention.
    """
    return _native.attention_multiply_adds(
        steps, like=like, group=group, num_threads=num_threads, isa=isa
    )
