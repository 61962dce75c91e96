"""Layout of the arena file: what is where.

Both engines compute it from the header; it holds no pointers.

    header | heartbeats | sequence table | block tables | block tokens | assist channels | KV

All integers are little-endian. A change of anything here is a new `ABI_VERSION`, which both sides
check when they attach.
"""

import enum
from dataclasses import dataclass

import numpy as np

from dualpace.core.errors import ArenaError
from dualpace.core.request import MAX_STOP_TOKEN_IDS

MAGIC = b"DPARENA\x00"
ABI_VERSION = 1
FINGERPRINT_BYTES = 32
PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20

GEOMETRY_FIELDS = (
    "num_layers",
    "num_blocks",
    "num_kv_heads",
    "block_size",
    "head_dim",
    "kv_dtype",
    "num_slots",
    "max_blocks_per_sequence",
)

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("abi_version", "<u4"),
        ("creator_pid", "<u4"),
        ("generation", "<u8"),
        ("total_bytes", "<u8"),
        ("fingerprint", f"V{FINGERPRINT_BYTES}"),
        *((name, "<u4") for name in GEOMETRY_FIELDS),
    ]
)

HEARTBEAT = np.dtype(
    {
        "names": ["pid", "busy", "beat_ns", "steps", "started_ns"],
        "formats": ["<u4", "<u4", "<u8", "<u8", "<u8"],
        "offsets": [0, 4, 8, 16, 24],
        "itemsize": 64,  # a cache line each: the engines beat without sharing one
    }
)

SLOT_FREE = 0
SLOT_OWNED = 1
NO_BOUND = 0
"""In `return_at`: the cpu-engine keeps the request until it ends."""

SLOT = np.dtype(
    {
        "names": [
            "state",
            "num_tokens",
            "request_id",
            "gateway_id",
            "prompt_tokens",
            "max_tokens",
            "return_at",
            "logprobs",
            "arrival_s",
            "seed",
            "temperature",
            "top_p",
            "min_p",
            "top_k",
            "num_stop_token_ids",
            "stop_token_ids",
        ],
        "formats": [
            "<u4",
            "<u4",
            "<u8",
            "<u8",
            "<u4",
            "<u4",
            "<u4",
            "<i4",
            "<f8",
            "<u8",
            "<f8",
            "<f8",
            "<f8",
            "<u4",
            "<u4",
            ("<i4", MAX_STOP_TOKEN_IDS),
        ],
        "offsets": [0, 4, 8, 16, 24, 28, 32, 36, 40, 48, 56, 64, 72, 80, 84, 88],
        "itemsize": 256,
    }
)


class KvDtype(enum.IntEnum):
    """Element type of the KV cache."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self is KvDtype.FLOAT32 else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaGeometry:
    """Sizes from which every offset follows."""

    num_layers: int
    num_blocks: int
    num_kv_heads: int
    block_size: int
    """Tokens a block; a multiple of 16."""
    head_dim: int
    kv_dtype: KvDtype
    num_slots: int
    """Sequences that the host can hold."""
    max_blocks_per_sequence: int

    def __post_init__(self) -> None:
        for name in GEOMETRY_FIELDS:
            if int(getattr(self, name)) <= 0:
                raise ArenaError(f"arena geometry: {name} must be positive")
        if self.block_size % 16:
            raise ArenaError(f"arena geometry: block_size {self.block_size} is no multiple of 16")

    @property
    def block_bytes(self) -> int:
        """KV bytes of one block in one layer, K and V together."""
        elements = 2 * self.num_kv_heads * self.block_size * self.head_dim
        return elements * self.kv_dtype.itemsize

    @property
    def kv_shape(self) -> tuple[int, int, int, int, int, int]:
        """[layer][block][k|v][kv_head][slot][head_dim]."""
        return (
            self.num_layers,
            self.num_blocks,
            2,
            self.num_kv_heads,
            self.block_size,
            self.head_dim,
        )


@dataclass(frozen=True, slots=True)
class Region:
    """A byte range of the arena."""

    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each region of an arena lies."""

    heartbeats: Region
    sequences: Region
    block_tables: Region
    """[slot][index] int32: arena blocks of the sequence in a slot, in order."""
    block_tokens: Region
    """[block][slot in block] int32: the token ids whose KV the block holds, and the newest one."""
    assist: Region
    """Dense Assist channels; empty in this version."""
    kv: Region
    total_bytes: int


def layout_of(geometry: ArenaGeometry) -> Layout:
    """Compute the layout. KV starts on a huge page, so that the kernel can map it with such."""
    cursor = PAGE_BYTES

    def place(num_bytes: int, align: int = PAGE_BYTES) -> Region:
        nonlocal cursor
        offset = -(-cursor // align) * align
        cursor = offset + num_bytes
        return Region(offset, num_bytes)

    heartbeats = place(2 * HEARTBEAT.itemsize)
    sequences = place(geometry.num_slots * SLOT.itemsize)
    block_tables = place(geometry.num_slots * geometry.max_blocks_per_sequence * 4)
    block_tokens = place(geometry.num_blocks * geometry.block_size * 4)
    assist = place(0)
    kv_bytes = geometry.num_layers * geometry.num_blocks * geometry.block_bytes
    kv = place(kv_bytes, HUGE_PAGE_BYTES)
    total = -(-cursor // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    return Layout(heartbeats, sequences, block_tables, block_tokens, assist, kv, total)
