"""Ties the compute threads to processors. Which processors those are is the caller's choice.

The threads are the OpenMP pool's, which PyTorch shares: a team of `n` threads is always the same
threads, as long as no team of another size comes between.
"""

from collections.abc import Sequence

from dualpace.kernels import _native


def pin_threads(cpus: Sequence[int]) -> None:
    """Tie compute thread i to processor cpus[i]; the calling thread is thread 0.

    Threads that the caller starts afterwards inherit its processor. Raises ValueError naming a
    processor that is none, or on which this process may not run.
    """
    _native.pin_threads(list(cpus))


def thread_affinities(num_threads: int) -> list[list[int]]:
    """Return for each compute thread the processors that it may run on now."""
    return _native.thread_affinities(num_threads)
