"""Layout of the arena file: what is where.

Both engines compute it from the header; it holds no pointers.

    header | heartbeats | sequence table | requests | block tables | block tokens | assist | KV

All integers are little-endian. A change of anything here is a new `ABI_VERSION`, which both sides
check when they attach.
"""

import enum
from dataclasses import dataclass

import numpy as np

from dualpace.core.errors import ArenaError
from dualpace.ipc.assist_layout import AssistGeometry, assist_layout

MAGIC = b"DPARENA\x00"
ABI_VERSION = 4
FINGERPRINT_BYTES = 32
PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20

GEOMETRY_FIELDS = (
    "num_layers",
    "num_blocks",
    "num_heads",
    "num_kv_heads",
    "block_size",
    "head_dim",
    "kv_dtype",
    "num_slots",
    "max_blocks_per_sequence",
    "request_bytes",
    "assist_rows",
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
SLOT_LENT = 2
"""Not the cpu-engine's, but the gpu-engine may be copying to or from its blocks."""
NO_BOUND = 0
"""In `return_at`: the cpu-engine keeps the request until it ends."""

SLOT = np.dtype(
    {
        "names": ["state", "num_tokens", "request_id", "return_at", "request_bytes"],
        "formats": ["<u4", "<u4", "<u8", "<u4", "<u4"],
        "offsets": [0, 4, 8, 16, 20],
        "itemsize": 64,
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
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    block_size: int
    """Tokens a block; a multiple of 16."""
    head_dim: int
    kv_dtype: KvDtype
    num_slots: int
    """Sequences that the host can hold."""
    max_blocks_per_sequence: int
    request_bytes: int
    """Room a slot has for its request, which is of variable size; a multiple of 64."""
    assist_rows: int = 0
    """Most rows of a micro-batch whose dense stages the device may be lent for; 0: no assist."""

    def __post_init__(self) -> None:
        for name in GEOMETRY_FIELDS:
            if int(getattr(self, name)) < (name != "assist_rows"):
                raise ArenaError(f"arena geometry: {name} must be positive")
        if self.block_size % 16:
            raise ArenaError(f"arena geometry: block_size {self.block_size} is no multiple of 16")
        if self.request_bytes % 64:
            raise ArenaError(
                f"arena geometry: request_bytes {self.request_bytes} is no multiple of 64"
            )

    @property
    def block_bytes(self) -> int:
        """KV bytes of one block in one layer, K and V together."""
        elements = 2 * self.num_kv_heads * self.block_size * self.head_dim
        return elements * self.kv_dtype.itemsize

    @property
    def assist(self) -> AssistGeometry:
        """Sizes of the Dense Assist region."""
        return AssistGeometry(
            rows=self.assist_rows,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            itemsize=self.kv_dtype.itemsize,
        )

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


def differences(found: ArenaGeometry, wanted: ArenaGeometry) -> str:
    """Return what two geometries differ in, for people."""
    values = {name: (getattr(found, name), getattr(wanted, name)) for name in GEOMETRY_FIELDS}
    return ", ".join(f"{name} {a}, not {b}" for name, (a, b) in values.items() if a != b)


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
    requests: Region
    """[slot][byte]: the request in a slot, encoded as in the conversations between processes."""
    block_tables: Region
    """[slot][index] int32: arena blocks of the sequence in a slot, in order."""
    block_tokens: Region
    """[block][slot in block] int32: the token ids whose KV the block holds, and the newest one."""
    assist: Region
    """Dense Assist: see `assist_layout`."""
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
    requests = place(geometry.num_slots * geometry.request_bytes)
    block_tables = place(geometry.num_slots * geometry.max_blocks_per_sequence * 4)
    block_tokens = place(geometry.num_blocks * geometry.block_size * 4)
    assist = place(assist_layout(geometry.assist).num_bytes)
    kv_bytes = geometry.num_layers * geometry.num_blocks * geometry.block_bytes
    kv = place(kv_bytes, HUGE_PAGE_BYTES)
    total = -(-cursor // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    return Layout(heartbeats, sequences, requests, block_tables, block_tokens, assist, kv, total)
