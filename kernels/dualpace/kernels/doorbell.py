"""Words in shared memory on which processes wait for each other: a bounded spin, then a futex.

`words` is an int32 array [count] over memory that all parties map; values count modulo 2^32 and are
returned as 0 .. 2^32 - 1. Stores release and loads acquire: what was written before a store is seen
after the load that returns it.
"""

from dualpace.kernels import _native
from dualpace.kernels.attention import HostArray


def ring(words: HostArray, index: int) -> int:
    """Add one to a word, wake who waits for it, and return its new value."""
    return _native.doorbell_ring(words, index)


def publish(words: HostArray, index: int, value: int) -> None:
    """Store a value, modulo 2^32, and wake who waits for the word."""
    _native.doorbell_publish(words, index, value)


def load(words: HostArray, index: int) -> int:
    """Return a word."""
    return _native.doorbell_load(words, index)


def wait_changed(words: HostArray, index: int, seen: int, *, spin_ns: int, timeout_ns: int) -> int:
    """Return a word once it differs from `seen`, or as it is when the time is up.

    Spins for `spin_ns` of the `timeout_ns`, then sleeps. Other threads of the interpreter run
    meanwhile.
    """
    return _native.doorbell_wait(words, index, seen, spin_ns, timeout_ns)
