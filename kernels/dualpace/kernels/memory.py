"""Memory that is read fast, and the limit that memory-bound kernels are held against."""

import mmap

from dualpace.kernels import _native
from dualpace.kernels.attention import HostArray


def huge_pages(size: int) -> mmap.mmap:
    """Return `size` zeroed bytes of memory, on huge pages where the system gives them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def stream_read(words: HostArray, *, num_threads: int) -> int:
    """Read [count] int64 `words` once, as fast as memory allows, and return their sum modulo 2^64.

    Each thread reads one equal, contiguous piece. Time a call on an array far larger than the
    caches to get the read bandwidth of `num_threads` cores. Raises ValueError naming the argument,
    its size or value, and what is allowed.
    """
    return _native.stream_read(words, num_threads=num_threads)
