"""Native kernels."""

from collections.abc import Sequence

def compiled_isas() -> list[str]:
    """Levels that were compiled, rising."""

def available_isas() -> list[str]:
    """Compiled levels that this machine runs."""

def portable_twins() -> list[str]:
    """Levels' logic on any processor; for tests."""

def dispatched_isa() -> str:
    """The level used by default."""

def passed_over_isa() -> str | None:
    """The level that is left out for its slow arithmetic; None: none is."""

def set_max_isa(name: str | None) -> None:
    """Cap the level used by default; None lifts the cap."""

def max_isa() -> str | None:
    """The cap; None: no cap."""

def assume_available(name: str) -> None:
    """Count a compiled level as available: for tests under an emulator."""

def tile_refusal() -> str:
    """Why tiles that the processor has are not used; empty: no such case."""

def request_tile_permission() -> int:
    """Ask for the process; 0 or an errno."""

def describe_tile_refusal(saved: bool, error: int) -> str:
    """The words of tile_refusal for what the operating system answers."""

LEAST_TILE_ROWS: int = 5

LEAST_TILE_HEADS: int = 4

def compiler() -> str:
    """Name and version of the compiler."""

def openmp_runtime() -> str:
    """File of the OpenMP runtime that the kernels call."""

def openmp_max_threads() -> int:
    """Threads that the runtime would use by itself."""

SPAN_KEYS: int = 128

MOST_SPAN_KEYS: int = 160

def attention_plan(
    lengths: object, *, heads: int, kv_heads: int, window: int, num_parts: int
) -> tuple[int, list[tuple[int, int]]]:
    """A strip's kv heads, and bounds of the parts, as (strip, span)."""

def doorbell_ring(words: object, index: int) -> int:
    """See dualpace.kernels.ring."""

def doorbell_publish(words: object, index: int, value: int) -> None:
    """See dualpace.kernels.publish."""

def doorbell_load(words: object, index: int) -> int:
    """See dualpace.kernels.load."""

def doorbell_wait(words: object, index: int, seen: int, spin_ns: int, timeout_ns: int) -> int:
    """See dualpace.kernels.wait_changed."""

class PackedLinear:
    """See dualpace.kernels.PackedLinear."""

    def __init__(
        self, weight: object, bias: object | None, *, format: str, group: int, num_threads: int
    ) -> None: ...
    def multiply(
        self, x: object, out: object, *, rounding: bool, num_threads: int, isa: str | None
    ) -> None: ...
    def unpack(self, out: object) -> None: ...
    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def format(self) -> str: ...

def holds_exactly(weight: object, *, format: str, num_threads: int) -> bool:
    """See dualpace.kernels.holds_exactly."""

def multiply_adds(steps: int, *, arithmetic: str, num_threads: int, isa: str | None) -> int:
    """See dualpace.kernels.multiply_adds."""

def narrow_arithmetic(*, isa: str | None) -> str:
    """See dualpace.kernels.narrow_arithmetic."""

def huge_memory_use() -> tuple[int, int]:
    """Bytes held for packed weights, and how many of them lie on huge pages."""

class HostDecoder:
    """See dualpace.kernels.HostDecoder."""

    def __init__(
        self,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        inner: int,
        norm_eps: float,
        attention_scale: float,
        embedding_scale: float,
    ) -> None: ...
    def set_ends(
        self, *, embedding: object, final_norm: object, head: PackedLinear, screening_threads: int
    ) -> int: ...
    def add_layer(
        self,
        *,
        input_norm: object,
        qkv: PackedLinear,
        q_norm: object | None,
        k_norm: object | None,
        output: PackedLinear,
        output_norm: object | None,
        feed_forward_norm: object,
        gate_up: PackedLinear,
        down: PackedLinear,
        feed_forward_output_norm: object | None,
        rope: object,
        activation: str,
        window: int,
    ) -> None: ...
    def complete(self) -> None: ...
    def step(
        self,
        *,
        token_ids: object,
        rows: object,
        lengths: object,
        block_tables: object,
        kv: object,
        logits: object,
        best: object,
        finite: object,
        wanted: object | None,
        rounding: bool,
        num_threads: int,
        isa: str | None,
        rows_in_turns: int,
        flag: object | None,
        serve: object | None,
    ) -> int: ...
    @property
    def stage_seconds(self) -> list[float]:
        """Of all steps: embed, pre-attention, attention, post-attention, head."""

    @property
    def passes_in_turns(self) -> int:
        """See dualpace.kernels.HostDecoder."""

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
    rounding: bool,
    num_threads: int,
    isa: str | None,
) -> None:
    """See dualpace.kernels.paged_attention_decode."""

def attention_multiply_adds(
    steps: int, *, like: object, group: int, num_threads: int, isa: str | None
) -> int:
    """See dualpace.kernels.attention_multiply_adds."""

def pin_threads(cpus: Sequence[int]) -> None:
    """See dualpace.kernels.pin_threads."""

def thread_affinities(num_threads: int) -> list[list[int]]:
    """See dualpace.kernels.thread_affinities."""

def stream_read(words: object, *, num_threads: int) -> int:
    """See dualpace.kernels.stream_read."""
