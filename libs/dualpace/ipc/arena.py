"""The arena: one file in shared memory that both engines map. Created by the gpu-engine.

A file appears under its final name only when it is complete. Whoever maps it holds a shared lock
on it, so that a file nobody locks is a leftover of a killed run: it is never trusted, and the next
creator removes it. One that the other engine still uses is joined by an engine that comes back;
the last to leave removes the file. Nothing here knows what the bytes mean to a model.
"""

import errno
import fcntl
import logging
import math
import mmap
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dualpace.core.clock import Clock, SystemClock
from dualpace.core.errors import ArenaError, CapacityError
from dualpace.core.request import Engine
from dualpace.ipc.heartbeat import Heartbeat
from dualpace.ipc.layout import (
    ABI_VERSION,
    GEOMETRY_FIELDS,
    HEADER,
    HEARTBEAT,
    MAGIC,
    SLOT,
    ArenaGeometry,
    KvDtype,
    Region,
    differences,
    layout_of,
)
from dualpace.ipc.sequence_table import SequenceTable

log = logging.getLogger(__name__)

FILE_NAME = "arena"
_SLAB_BYTES = 256 << 20
_WAIT_UNSAID_S = 1.0
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not named in Python's mmap module


class Arena:
    """A mapped arena. Use `create` or `attach`, and `close` when done."""

    def __init__(
        self, path: Path, fd: int, memory: mmap.mmap, geometry: ArenaGeometry, *, joined: bool
    ) -> None:
        self.path = path
        self.geometry = geometry
        self.layout = layout_of(geometry)
        self.memory = memory
        self.joined = joined
        """Whether it was there already."""
        self._fd = fd
        header = self._view(Region(0, HEADER.itemsize), HEADER)
        self.generation = int(header["generation"][0])
        self.block_tables: npt.NDArray[np.int32] = self._view(
            self.layout.block_tables, np.dtype("<i4")
        ).reshape(geometry.num_slots, geometry.max_blocks_per_sequence)
        self.block_tokens: npt.NDArray[np.int32] = self._view(
            self.layout.block_tokens, np.dtype("<i4")
        ).reshape(geometry.num_blocks, geometry.block_size)
        requests = self._view(self.layout.requests, np.dtype("u1"))
        self.sequences = SequenceTable(
            self._view(self.layout.sequences, SLOT),
            requests.reshape(geometry.num_slots, geometry.request_bytes),
        )

    @classmethod
    def create(
        cls,
        directory: Path,
        geometry: ArenaGeometry,
        fingerprint: bytes,
        *,
        join: bool = False,
        timeout_s: float = 0.5,
        progress: Callable[[float], None] = lambda _: None,
        check: Callable[[], None] = lambda: None,
    ) -> "Arena":
        """Make and pre-fault a new arena in `directory`, removing leftovers of killed runs.

        `join`: map the one that another process still uses instead, if it is such as this would be.
        Raises ArenaError if another process still uses the one that is there after `timeout_s`,
        CapacityError if memory does not suffice. `progress` gets the fraction done; `check` is
        called while waiting, and may raise to end it. Even an engine that only looks seems to use
        the arena for a moment.
        """
        path = directory / FILE_NAME
        deadline = time.monotonic() + timeout_s
        said = time.monotonic() + _WAIT_UNSAID_S
        while _remove_stale(directory):
            check()
            why = "is in use by another engine"
            if join:
                try:
                    if arena := cls._join(path, fingerprint, geometry):
                        return arena
                except ArenaError as error:
                    why = f"is in use by another engine, and cannot be joined: {error}"
            if time.monotonic() > deadline:
                raise ArenaError(f"{path} {why}")
            if time.monotonic() > said:
                log.info("waiting for another engine to leave: %s %s", path, why)
                said = math.inf
            time.sleep(0.05)
        total = layout_of(geometry).total_bytes
        require_space(directory, total)
        draft = directory / f"{FILE_NAME}.{os.getpid()}.draft"
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            os.ftruncate(fd, total)
            memory = _map(fd, total, progress)
            _write_header(fd, geometry, fingerprint, total)
            draft.rename(path)
            return cls(path, fd, memory, geometry, joined=False)
        except BaseException:
            draft.unlink(missing_ok=True)
            os.close(fd)
            raise

    @classmethod
    def attach(
        cls,
        directory: Path,
        fingerprint: bytes,
        *,
        timeout_s: float,
        clock: Clock | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> "Arena":
        """Map the arena that a live gpu-engine made in `directory`, waiting for it to appear.

        Raises ArenaError after `timeout_s`, or if the file is of another layout version or another
        model. `check` is called while waiting, and may raise to end it.
        """
        clock = clock or SystemClock()
        path = directory / FILE_NAME
        deadline = clock.now() + timeout_s
        while (arena := cls._join(path, fingerprint)) is None:
            if clock.now() > deadline:
                raise ArenaError(f"no gpu-engine made {path} within {timeout_s:.0f} s")
            check()
            time.sleep(0.02)
        return arena

    @classmethod
    def _join(
        cls, path: Path, fingerprint: bytes, wanted: ArenaGeometry | None = None
    ) -> "Arena | None":
        """Map an arena that another process has mapped; None if there is none.

        Raises ArenaError if it is not such as `wanted`.
        """
        fd = _open_live(path)
        if fd is None:
            return None
        try:
            geometry = _read_header(path, fd, fingerprint, wanted)
            memory = _map(fd, layout_of(geometry).total_bytes, lambda _: None)
            return cls(path, fd, memory, geometry, joined=True)
        except BaseException:
            os.close(fd)
            raise

    def heartbeat(self, engine: Engine) -> Heartbeat:
        """Return the heartbeat record of an engine."""
        return Heartbeat(self._view(self.layout.heartbeats, HEARTBEAT)[int(engine) :][:1])

    @property
    def assist_memory(self) -> npt.NDArray[np.uint8]:
        """The Dense Assist region as bytes; empty if there is none."""
        return self._view(self.layout.assist, np.dtype(np.uint8))

    def write_tokens(self, blocks: Sequence[int], tokens: npt.ArrayLike) -> None:
        """Store token ids of a sequence, from position 0 on, in the blocks that hold its KV."""
        ids = np.asarray(tokens, dtype=np.int32)
        size = self.geometry.block_size
        for index in range(-(-len(ids) // size)):
            part = ids[index * size : (index + 1) * size]
            self.block_tokens[blocks[index], : len(part)] = part

    def token_at(self, slot: int, position: int) -> int:
        """Return the token id at a position of the sequence in a slot."""
        block = self.block_tables[slot, position // self.geometry.block_size]
        return int(self.block_tokens[block, position % self.geometry.block_size])

    def tokens_of(self, slot: int, begin: int, end: int) -> list[int]:
        """Return the token ids at positions `begin` .. `end - 1` of the sequence in a slot."""
        size = self.geometry.block_size
        first = begin // size
        blocks = self.block_tables[slot, first : -(-end // size)]
        ids = self.block_tokens[blocks].reshape(-1)
        token_ids: list[int] = ids[begin - first * size : end - first * size].tolist()
        return token_ids

    def huge_page_bytes(self) -> int:
        """Return how much of this process's arena mapping the kernel maps with huge pages."""
        total, inside = 0, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if "-" in line.split(" ", 1)[0]:
                inside = line.endswith(str(self.path))
            elif inside and line.startswith(("ShmemPmdMapped:", "FilePmdMapped:")):
                total += int(line.split()[1]) * 1024
        return total

    def close(self) -> None:
        """Unmap, and unlink if nobody else uses the file. Views must not be used any more."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # first, lest two that leave at once see each other
        if _is_file(self.path, self._fd) and _lock_is_free(self._fd):
            self.path.unlink(missing_ok=True)
        del self.sequences, self.block_tables, self.block_tokens
        try:
            self.memory.close()
        except BufferError:
            # Tensors still look at it; the mapping goes with the process.
            log.debug("arena mapping outlives close()")
        os.close(self._fd)

    def _view(self, region: Region, dtype: np.dtype) -> npt.NDArray:  # type: ignore[type-arg]
        count = region.num_bytes // dtype.itemsize
        return np.frombuffer(self.memory, dtype=dtype, count=count, offset=region.offset)


def _is_file(path: Path, fd: int) -> bool:
    """Whether a path still names the open file, and not one that was made after it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _lock_is_free(fd: int) -> bool:
    """Whether nobody maps this file; leaves it unlocked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def _remove_stale(directory: Path) -> bool:
    """Remove what nobody uses; return whether the arena is in use."""
    for path in (directory / FILE_NAME, *directory.glob(f"{FILE_NAME}.*.draft")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if _lock_is_free(fd):
                log.warning("removing %s, left behind by a killed run", path)
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)
    return (directory / FILE_NAME).exists()


def require_space(directory: Path, total: int) -> None:
    """Raise CapacityError unless a directory's file system has `total` bytes free.

    An arena that is there already counts as free: it will be joined, or removed.
    """
    space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize
    if (directory / FILE_NAME).exists():
        free += (directory / FILE_NAME).stat().st_blocks * 512
    if free < total:
        raise CapacityError(
            f"the arena needs {total >> 20} MiB, but {directory} has only {free >> 20} MiB free:"
            " make it smaller, or the volume larger"
        )


def _map(fd: int, total: int, progress: Callable[[float], None]) -> mmap.mmap:
    """Map the file and fault every page in now, in huge pages if the kernel has them.

    Later, a page that cannot be had is a SIGBUS.
    """
    memory = mmap.mmap(fd, total)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        log.info("no huge pages for the arena: %s", error)
    for start in range(0, total, _SLAB_BYTES):
        length = min(_SLAB_BYTES, total - start)
        try:
            memory.madvise(_MADV_POPULATE_WRITE, start, length)
        except OSError as error:
            if error.errno != errno.EINVAL:
                memory.close()
                # EFAULT is the kernel's word for a page that the file system has no room for.
                reason = "its volume or this container's memory is full"
                if error.errno not in (errno.EFAULT, errno.ENOMEM, errno.ENOSPC):
                    reason = error.strerror or str(error)
                raise CapacityError(
                    f"the arena got only {start >> 20} of {total >> 20} MiB: {reason}"
                ) from error
            os.posix_fallocate(fd, start, length)  # a kernel older than the advice
        progress((start + length) / total)
    return memory


def _write_header(fd: int, geometry: ArenaGeometry, fingerprint: bytes, total: int) -> None:
    header = np.zeros(1, HEADER)
    header["magic"] = MAGIC
    header["abi_version"] = ABI_VERSION
    header["creator_pid"] = os.getpid()
    header["generation"] = secrets.randbits(63)
    header["total_bytes"] = total
    header["fingerprint"] = np.void(fingerprint)
    for name in GEOMETRY_FIELDS:
        header[name] = int(getattr(geometry, name))
    os.pwrite(fd, header.tobytes(), 0)


def _open_live(path: Path) -> int | None:
    """Open and lock an arena that someone else has mapped; None if there is none."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if _lock_is_free(fd):
        os.close(fd)
        return None
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _read_header(
    path: Path, fd: int, fingerprint: bytes, wanted: ArenaGeometry | None
) -> ArenaGeometry:
    raw = os.pread(fd, HEADER.itemsize, 0)
    if len(raw) < HEADER.itemsize or raw[: len(MAGIC)] != MAGIC:
        raise ArenaError(f"{path} is not an arena")
    header = np.frombuffer(raw, HEADER)[0]
    if header["abi_version"] != ABI_VERSION:
        raise ArenaError(
            f"{path} has layout version {header['abi_version']}, this engine speaks {ABI_VERSION}:"
            " run the same release of both engines"
        )
    if header["fingerprint"].tobytes() != fingerprint:
        raise ArenaError(f"{path} was made for another model than this engine's")
    sizes = {name: int(header[name]) for name in GEOMETRY_FIELDS}
    kv_dtype = KvDtype(sizes.pop("kv_dtype"))
    geometry = ArenaGeometry(kv_dtype=kv_dtype, **sizes)
    total = layout_of(geometry).total_bytes
    if total != header["total_bytes"] or os.fstat(fd).st_size != total:
        raise ArenaError(f"{path} is truncated or damaged")
    if wanted is not None and geometry != wanted:
        raise ArenaError(f"it has other sizes: {differences(geometry, wanted)}")
    return geometry


def arena_blocks(budget_bytes: int, geometry_of: Callable[[int], ArenaGeometry]) -> int:
    """Return the largest number of blocks whose arena fits `budget_bytes`; 0 if none does."""
    low, high = 0, max(1, budget_bytes // max(1, geometry_of(1).block_bytes))
    while low < high:
        middle = (low + high + 1) // 2
        if layout_of(geometry_of(middle)).total_bytes <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return low
