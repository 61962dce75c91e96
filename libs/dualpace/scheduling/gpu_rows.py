"""What of a sequence goes into a plan of the gpu-engine: its row, and copies of its KV.

Each row that streams to the host, and each copy, is counted as under way in its sequence. Who gets
one, and when, is decided in `gpu`.
"""

from collections.abc import Sequence

from dualpace.scheduling.gpu_sequence import GpuSequence, Phase
from dualpace.scheduling.plan import GpuRow, KvCopy


def next_row(sequence: GpuSequence, count: int) -> GpuRow:
    """Return the row that computes the next `count` tokens; if bound for the host, it streams."""
    assert sequence.lease is not None
    assert sequence.slot is not None
    start = sequence.computed
    stream_to: Sequence[int] | None = None
    if sequence.bound_for_host:
        assert sequence.host is not None
        stream_to = sequence.host.blocks
        sequence.copies_in_flight += 1
    return GpuRow(
        request=sequence.request,
        slot=sequence.slot,
        start=start,
        tokens=tuple(sequence.tokens[start : start + count]),
        blocks=sequence.lease.blocks,
        known_tokens=sequence.tokens,
        samples=count == sequence.pending,
        scored=sequence.unscored(start, count),
        stream_to=stream_to,
    )


def copy_out(sequence: GpuSequence) -> KvCopy:
    """Return the copy to the host of all that is computed."""
    return _copy(sequence, sequence.computed)


def copy_back(sequence: GpuSequence) -> KvCopy:
    """WAITING, with blocks on both sides -> ARRIVING: return the copy to the device."""
    assert sequence.host is not None
    sequence.phase = Phase.ARRIVING
    return _copy(sequence, sequence.host.kv_tokens)


def _copy(sequence: GpuSequence, num_positions: int) -> KvCopy:
    assert sequence.lease is not None
    assert sequence.host is not None
    assert sequence.host.blocks is not None
    sequence.copies_in_flight += 1
    return KvCopy(sequence.request_id, sequence.lease.blocks, sequence.host.blocks, num_positions)
