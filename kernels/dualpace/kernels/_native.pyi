"""Native kernels."""

def compiled_isas() -> list[str]:
    """Levels that were compiled, rising."""

def available_isas() -> list[str]:
    """Compiled levels that this machine runs."""

def dispatched_isa() -> str:
    """The level used by default."""

def set_max_isa(name: str | None) -> None:
    """Cap the level used by default; None lifts the cap."""

def max_isa() -> str | None:
    """The cap; None: no cap."""

def compiler() -> str:
    """Name and version of the compiler."""

def openmp_runtime() -> str:
    """File of the OpenMP runtime that the kernels call."""

def openmp_max_threads() -> int:
    """Threads that the runtime would use by itself."""

SPAN_KEYS: int = 128

def attention_plan(
    lengths: object, *, kv_heads: int, window: int, num_parts: int
) -> list[tuple[int, int]]:
    """Bounds of the parts, as (sequence * kv_heads + kv head, span)."""

def doorbell_ring(words: object, index: int) -> int:
    """See dualpace.kernels.ring."""

def doorbell_publish(words: object, index: int, value: int) -> None:
    """See dualpace.kernels.publish."""

def doorbell_load(words: object, index: int) -> int:
    """See dualpace.kernels.load."""

def doorbell_wait(words: object, index: int, seen: int, spin_ns: int, timeout_ns: int) -> int:
    """See dualpace.kernels.wait_changed."""

def paged_attention_decode(
    query: object,
    kv: object,
    block_tables: object,
    rows: object,
    lengths: object,
    out: object,
    *,
    scale: float,
    window: int,
    num_threads: int,
    isa: str | None,
) -> None:
    """See dualpace.kernels.paged_attention_decode."""

def stream_read(words: object, *, num_threads: int) -> int:
    """See dualpace.kernels.stream_read."""
