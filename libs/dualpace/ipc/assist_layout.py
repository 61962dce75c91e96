"""Layout of the arena's Dense Assist region: two bells, what the device offers, and the channels.

    bells | offer | channel 0 | channel 1

One channel for each micro-batch that the host may have in flight. A channel is a call record, the
rows of the batch, and the tensors that cross: attention output up, Q, K and V down, results of the
last call. The host writes a call's number last, the device its answer's; each then rings.
"""

from dataclasses import dataclass

import numpy as np

from dualpace.core.request import MAX_LOGPROBS

NUM_CHANNELS = 2
_LINE = 64

BELLS = np.dtype(
    {"names": ["gpu", "cpu"], "formats": ["<i4", "<i4"], "offsets": [0, _LINE], "itemsize": 128}
)
"""Counters that wake an engine: rung by its peer, and by its own threads."""

OFFER = np.dtype(
    {
        "names": ["open", "rows", "price", "share", "stage_s", "sweep_s"],
        "formats": ["<u4", "<u4", "<f8", "<f8", "<f8", "<f8"],
        "itemsize": _LINE,
    }
)
"""See scheduling.routing.AssistTerms."""

CALL = np.dtype(
    {
        "names": ["number", "boundary", "rows", "answer", "status", "device_ns"],
        "formats": ["<i4", "<u4", "<u4", "<i4", "<u4", "<u8"],
        "offsets": [0, 4, 8, _LINE, _LINE + 4, _LINE + 8],
        "itemsize": 2 * _LINE,
    }
)
"""Host's line, then the device's. `answer` is the number of the call that was answered last."""

ROW = np.dtype([("token_id", "<i4"), ("position", "<i4"), ("slot", "<i4"), ("unused", "<i4")])
"""A row of the batch; written before the first call of an iteration."""

MESSAGE_BYTES = 116
RESULT = np.dtype(
    [
        ("kind", "<u4"),  # 0: no token, and `message` says why; 1: a token; 2: with logprobs
        ("token_id", "<i4"),
        ("reason", "<u4"),  # FinishReason of a row without a token
        ("rank", "<i4"),  # 0: not reported
        ("chosen", "<f4"),
        ("num_top", "<u4"),
        ("top_ids", "<i4", (MAX_LOGPROBS,)),
        ("top_logprobs", "<f4", (MAX_LOGPROBS,)),
        ("message", f"S{MESSAGE_BYTES}"),
    ]
)

STATUS_DONE = 1
STATUS_FAILED = 2
"""The device could not compute it; the host completes its iteration alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistGeometry:
    """Sizes of the region. Zero rows: there is no assist, and the region is empty."""

    rows: int
    """Most rows of a micro-batch."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    itemsize: int
    """Bytes of an element: tensors cross in the data type of the KV cache."""


@dataclass(frozen=True, slots=True)
class ChannelLayout:
    """Offsets of a channel, from the start of the region."""

    call: int
    rows: int
    attention: int
    """[rows, num_heads, head_dim]"""
    q: int
    """[rows, num_heads, head_dim]"""
    k: int
    """[rows, num_kv_heads, head_dim]"""
    v: int
    results: int


@dataclass(frozen=True, slots=True)
class AssistLayout:
    """Offsets within the region."""

    bells: int
    offer: int
    channels: tuple[ChannelLayout, ...]
    num_bytes: int


def assist_layout(geometry: AssistGeometry) -> AssistLayout:
    """Compute the layout."""
    cursor = 0

    def place(num_bytes: int) -> int:
        nonlocal cursor
        offset = cursor
        cursor += -(-num_bytes // _LINE) * _LINE
        return offset

    if geometry.rows == 0:
        return AssistLayout(0, 0, (), 0)
    bells, offer = place(BELLS.itemsize), place(OFFER.itemsize)
    row_bytes = geometry.rows * geometry.head_dim * geometry.itemsize
    channels = tuple(
        ChannelLayout(
            call=place(CALL.itemsize),
            rows=place(geometry.rows * ROW.itemsize),
            attention=place(row_bytes * geometry.num_heads),
            q=place(row_bytes * geometry.num_heads),
            k=place(row_bytes * geometry.num_kv_heads),
            v=place(row_bytes * geometry.num_kv_heads),
            results=place(geometry.rows * RESULT.itemsize),
        )
        for _ in range(NUM_CHANNELS)
    )
    return AssistLayout(bells, offer, channels, cursor)
