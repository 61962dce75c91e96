"""The arena between real processes.

Shared, checked, reclaimed after a kill, never trusted stale.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.errors import ArenaError, CapacityError
from dualpace.core.request import Engine, Request
from dualpace.ipc.arena import Arena, arena_blocks, require_space
from dualpace.ipc.codec import encoded_size
from dualpace.ipc.layout import (
    HEADER,
    HUGE_PAGE_BYTES,
    PAGE_BYTES,
    SLOT,
    ArenaGeometry,
    KvDtype,
    layout_of,
)
from dualpace.ipc.sequence_table import SequenceTable
from tests.unit.ipc.requests import REQUEST

FINGERPRINT = bytes(range(32))


def make_geometry(**changes: int) -> ArenaGeometry:
    sizes = {
        "num_layers": 2,
        "num_blocks": 8,
        "num_heads": 1,
        "num_kv_heads": 1,
        "block_size": 16,
        "head_dim": 8,
        "num_slots": 4,
        "max_blocks_per_sequence": 8,
        "request_bytes": 64,
    }
    return ArenaGeometry(kv_dtype=KvDtype.FLOAT32, **{**sizes, **changes})


def other_process(code: str, directory: Path) -> subprocess.Popen[str]:
    """Run code in another process, with `directory` and this module's names at hand."""
    prelude = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from dualpace.core.request import Engine\n"
        "from dualpace.ipc.arena import Arena\n"
        "from dualpace.ipc.layout import ArenaGeometry, KvDtype\n"
        "directory, fingerprint = Path(sys.argv[1]), bytes(range(32))\n"
        "geometry = ArenaGeometry(num_layers=2, num_blocks=8, num_heads=1,\n"
        "  num_kv_heads=1, block_size=16,\n"
        "  head_dim=8, kv_dtype=KvDtype.FLOAT32, num_slots=4, max_blocks_per_sequence=8,\n"
        "  request_bytes=64)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", prelude + code, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def close_pipes(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.close()
    process.stdin.close()


def test_two_processes_see_the_same_bytes(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path, make_geometry(), FINGERPRINT)
    arena.block_tables[1, :2] = (5, 3)
    arena.write_tokens([5, 3], range(100, 120))
    peer = other_process(
        "arena = Arena.attach(directory, fingerprint, timeout_s=5)\n"
        "print(arena.generation, arena.token_at(1, 0), arena.token_at(1, 19), flush=True)\n"
        "arena.block_tokens[3, 3] = 7\n"
        "arena.heartbeat(Engine.CPU).start(12.5)\n"
        "arena.close()\n",
        tmp_path,
    )
    assert read_line(peer) == f"{arena.generation} 100 119"
    assert peer.wait(10) == 0
    assert arena.token_at(1, 19) == 7
    heartbeat = arena.heartbeat(Engine.CPU)
    assert heartbeat.pid == peer.pid
    assert heartbeat.age_s(13.0) == pytest.approx(0.5)
    assert arena.heartbeat(Engine.GPU).age_s(13.0) is None
    arena.close()
    assert list(tmp_path.iterdir()) == []
    close_pipes(peer)


def test_attach_waits_for_the_creator(tmp_path: Path) -> None:
    peer = other_process(
        "print('up', flush=True)\n"
        "print(Arena.attach(directory, fingerprint, timeout_s=20).generation, flush=True)\n",
        tmp_path,
    )
    assert read_line(peer) == "up"
    arena = Arena.create(tmp_path, make_geometry(), FINGERPRINT)
    assert read_line(peer) == str(arena.generation)
    peer.wait(10)
    arena.close()
    close_pipes(peer)


def test_a_killed_creators_file_is_neither_trusted_nor_kept(tmp_path: Path) -> None:
    peer = other_process(
        "arena = Arena.create(directory, geometry, fingerprint)\n"
        "print(arena.generation, flush=True)\n"
        "sys.stdin.read()\n",
        tmp_path,
    )
    stale = int(read_line(peer))
    peer.send_signal(signal.SIGKILL)
    peer.wait(10)
    assert (tmp_path / "arena").exists()
    with pytest.raises(ArenaError, match="no gpu-engine made"):
        Arena.attach(tmp_path, FINGERPRINT, timeout_s=0.1)
    arena = Arena.create(tmp_path, make_geometry(), FINGERPRINT)
    assert arena.generation != stale
    assert [p.name for p in tmp_path.iterdir()] == ["arena"]
    arena.close()
    close_pipes(peer)


def test_a_half_made_file_of_a_killed_creator_is_removed(tmp_path: Path) -> None:
    (tmp_path / "arena.123.draft").write_bytes(b"half")
    Arena.create(tmp_path, make_geometry(), FINGERPRINT).close()
    assert list(tmp_path.iterdir()) == []


def test_a_live_arena_is_not_taken_over(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path, make_geometry(), FINGERPRINT)
    with pytest.raises(ArenaError, match="in use by another engine"):
        Arena.create(tmp_path, make_geometry(), FINGERPRINT)
    assert Arena.attach(tmp_path, FINGERPRINT, timeout_s=1).generation == arena.generation
    arena.close()


def test_an_arena_outlives_its_creator_as_long_as_somebody_uses_it(tmp_path: Path) -> None:
    first = Arena.create(tmp_path, make_geometry(), FINGERPRINT)
    host = Arena.attach(tmp_path, FINGERPRINT, timeout_s=1)
    host.block_tokens[2, 3] = 41
    first.close()
    again = Arena.create(tmp_path, make_geometry(), FINGERPRINT, join=True)
    assert (again.joined, again.generation) == (True, host.generation)
    assert again.block_tokens[2, 3] == 41
    host.close()
    assert (tmp_path / "arena").exists()
    again.close()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_creators_arena_is_joined_while_the_host_lives(tmp_path: Path) -> None:
    peer = other_process(
        "arena = Arena.create(directory, geometry, fingerprint)\n"
        "print('made', flush=True)\n"
        "sys.stdin.read()\n",
        tmp_path,
    )
    assert read_line(peer) == "made"
    host = Arena.attach(tmp_path, FINGERPRINT, timeout_s=5)
    peer.send_signal(signal.SIGKILL)
    peer.wait(10)
    again = Arena.create(tmp_path, make_geometry(), FINGERPRINT, join=True)
    assert again.generation == host.generation
    again.close()
    host.close()
    assert list(tmp_path.iterdir()) == []
    close_pipes(peer)


@pytest.mark.parametrize(
    ("geometry", "fingerprint", "why"),
    [
        (make_geometry(num_blocks=9), FINGERPRINT, "other sizes: num_blocks 8, not 9"),
        (make_geometry(), bytes(32), "another model"),
    ],
)
def test_what_cannot_be_joined_is_waited_for_in_vain(
    tmp_path: Path, geometry: ArenaGeometry, fingerprint: bytes, why: str
) -> None:
    host = Arena.create(tmp_path, make_geometry(), FINGERPRINT)
    with pytest.raises(ArenaError, match=f"in use by another engine, and cannot be joined.*{why}"):
        Arena.create(tmp_path, geometry, fingerprint, join=True, timeout_s=0.1)
    host.close()


def test_an_arena_that_is_there_already_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena.create(tmp_path, make_geometry(), FINGERPRINT)
    size = (tmp_path / "arena").stat().st_size
    space = os.statvfs(tmp_path)
    full = os.statvfs_result((*space[:4], 0, *space[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    require_space(tmp_path, size)
    with pytest.raises(CapacityError, match="only"):
        require_space(tmp_path, 2 * size)
    arena.close()
    with pytest.raises(CapacityError, match="only 0 MiB"):
        require_space(tmp_path, size)


def test_another_models_arena_is_refused(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path, make_geometry(), FINGERPRINT)
    with pytest.raises(ArenaError, match="another model"):
        Arena.attach(tmp_path, bytes(32), timeout_s=1)
    arena.close()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("magic", b"NOTARENA", "is not an arena"),
        ("abi_version", 99, "layout version 99"),
        ("num_blocks", 10**6, "truncated or damaged"),
    ],
)
def test_a_foreign_header_is_refused(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    arena = Arena.create(tmp_path, make_geometry(), FINGERPRINT)
    header = np.frombuffer(arena.memory, HEADER, count=1)
    header[field] = value
    with pytest.raises(ArenaError, match=message):
        Arena.attach(tmp_path, FINGERPRINT, timeout_s=1)
    arena.close()


def test_too_large_an_arena_names_the_numbers(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    blocks = space.f_bavail * space.f_frsize // make_geometry().block_bytes
    with pytest.raises(CapacityError, match=r"needs \d+ MiB, but .* has only \d+ MiB free"):
        Arena.create(tmp_path, make_geometry(num_blocks=blocks), FINGERPRINT)
    assert list(tmp_path.iterdir()) == []


@given(
    st.integers(1, 5),
    st.integers(1, 300),
    st.integers(1, 4),
    st.sampled_from([16, 32, 64]),
    st.sampled_from([32, 80, 128]),
    st.sampled_from(KvDtype),
    st.integers(1, 200),
    st.integers(1, 100),
)
def test_regions_do_not_overlap_and_kv_starts_on_a_huge_page(
    layers: int,
    blocks: int,
    heads: int,
    size: int,
    head_dim: int,
    dtype: KvDtype,
    slots: int,
    cache_lines: int,
) -> None:
    geometry = ArenaGeometry(
        num_layers=layers,
        num_blocks=blocks,
        num_heads=2 * heads,
        num_kv_heads=heads,
        assist_rows=slots,
        block_size=size,
        head_dim=head_dim,
        kv_dtype=dtype,
        num_slots=slots,
        max_blocks_per_sequence=blocks,
        request_bytes=cache_lines * 64,
    )
    layout = layout_of(geometry)
    regions = [
        layout.heartbeats,
        layout.sequences,
        layout.requests,
        layout.block_tables,
        layout.block_tokens,
        layout.assist,
        layout.kv,
    ]
    end = PAGE_BYTES
    for region in regions:
        assert region.offset >= end
        assert region.offset % PAGE_BYTES == 0
        end = region.offset + region.num_bytes
    assert layout.kv.offset % HUGE_PAGE_BYTES == 0
    assert layout.kv.num_bytes == int(np.prod(geometry.kv_shape)) * dtype.itemsize
    assert end <= layout.total_bytes < end + HUGE_PAGE_BYTES


@given(st.integers(1 << 20, 1 << 28))
def test_arena_blocks_is_the_largest_number_that_fits(budget: int) -> None:
    def geometry_of(blocks: int) -> ArenaGeometry:
        return make_geometry(num_blocks=max(1, blocks))

    blocks = arena_blocks(budget, geometry_of)
    if blocks:
        assert layout_of(geometry_of(blocks)).total_bytes <= budget
    assert layout_of(geometry_of(blocks + 1)).total_bytes > budget


@given(st.lists(st.tuples(REQUEST, st.none() | st.integers(1, 10**6)), max_size=4))
def test_the_sequence_table_gives_back_what_was_committed(
    entries: list[tuple[Request, int | None]],
) -> None:
    largest = max((encoded_size(request) for request, _ in entries), default=0)
    table = SequenceTable(np.zeros(4, SLOT), np.zeros((4, largest), np.uint8))
    for slot, (request, return_at) in enumerate(entries):
        table.open(slot, request, request.prompt_tokens + 1, return_at)
    table.advance(list(range(len(entries))), [request.prompt_tokens + 2 for request, _ in entries])
    assert table.owned_slots() == list(range(len(entries)))
    assert table.lent_slots() == []
    for slot, (request, return_at) in enumerate(entries):
        assert table.read(slot) == (request, request.prompt_tokens + 2, return_at)
        table.lend(slot, 40 + slot)
        assert table.request_id(slot) is None
        assert table.num_tokens(slot) == 40 + slot
    assert table.owned_slots() == []
    assert table.lent_slots() == list(range(len(entries)))
    for slot in range(len(entries)):
        table.close(slot)
    assert table.lent_slots() == []
