"""One decode step on the host: a token in for each sequence, logits out.

Two forms of it: the decoder's stages one by one, in torch and whatever its linear maps and
attention are, and the native kernels' own step. Neither knows requests or sampling.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dualpace.core.errors import DualPaceError
from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.forward import TokenBatch, forward
from dualpace.models.kv_pool import KvPool

log = logging.getLogger(__name__)


class UnsupportedModelError(DualPaceError):
    """The native step lacks something that the model needs; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBatch:
    """One token of each of B sequences."""

    token_ids: npt.NDArray[np.int64]
    """[B]"""
    rows: npt.NDArray[np.int32]
    """[B]: the block table row of each sequence."""
    lengths: npt.NDArray[np.int32]
    """[B]: positions of each sequence, the current token included."""
    wanted: npt.NDArray[np.bool_] | None = None
    """[B]: whose logits are wanted; None: everybody's. Of the others it is enough to tell the
    greatest. Those who join a step are wanted."""


@dataclass(frozen=True, slots=True)
class Logits:
    """What may come next. Valid until the next step. N rows: the batch, then those who joined."""

    values: Tensor
    """[N, vocab] float32. Where `best` is told, rows that are not wanted may hold anything."""
    best: npt.NDArray[np.int64] | None = None
    """[N]: the greatest of each row, the first of equals, where the step has looked for it."""
    finite: npt.NDArray[np.bool_] | None = None
    """[N]: whether all of a row are."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Where the time of all steps went, by stage."""

    embed: float
    pre_attention: float
    attention: float
    post_attention: float
    head: float


@dataclass(frozen=True, slots=True)
class Interruption:
    """What the caller wants to do in the middle of a step, between two layers.

    It runs in the thread that called the step; other rows may be computed meanwhile. It must leave
    alone what the step reads: the batch, its rows of the block tables, their blocks.
    """

    flag: npt.NDArray[np.int32]
    """[1]: not zero while there is something to do. Any thread may set it."""
    serve: Callable[[float | None], DecodeBatch | None]
    """Does it, and sets the flag to zero. What it raises ends the step, at once or after it.

    Is told which share of the step's layers those who join now have to catch up with, alone; None
    if nobody can. Returns those who do, `most_newcomers` in a step at most."""
    most_newcomers: int = 0

    def poll(self) -> None:
        """Serve if there is something to do, in a step which nobody can join."""
        if self.flag[0]:
            came = self.serve(None)
            assert came is None, "nobody can join this step"


class HostStep(Protocol):
    """Runs steps over one KV pool and its block tables."""

    def __call__(self, batch: DecodeBatch, interruption: Interruption | None = None) -> Logits:
        """Write the tokens' KV and compute their logits."""
        ...

    def seconds(self) -> StepSeconds | None:
        """Return where the time went; None if nobody looked."""
        ...


def token_batch(
    batch: DecodeBatch, block_tables: npt.NDArray[np.int32], block_size: int
) -> TokenBatch:
    """Return a decode batch as the stages take it; block_tables is [tables, width]."""
    positions = batch.lengths.astype(np.int64) - 1
    blocks = block_tables[batch.rows, positions // block_size].astype(np.int64)
    return TokenBatch(
        token_ids=torch.from_numpy(batch.token_ids),
        positions=torch.from_numpy(positions),
        block_ids=torch.from_numpy(blocks),
        slot_ids=torch.from_numpy(positions % block_size),
        block_tables=torch.from_numpy(block_tables),
        decode_rows=torch.from_numpy(batch.rows),
        decode_lengths=torch.from_numpy(batch.lengths),
        prefills=(),
        logit_rows=torch.arange(len(positions)),
    )


class StagedStep:
    """The decoder's stages, one by one."""

    def __init__(
        self,
        decoder: Decoder,
        pool: KvPool,
        block_tables: npt.NDArray[np.int32],
        attention: PagedAttention,
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._tables = block_tables
        self._attention = attention

    @torch.inference_mode()
    def __call__(self, batch: DecodeBatch, interruption: Interruption | None = None) -> Logits:
        """See HostStep."""
        tokens = token_batch(batch, self._tables, self._pool.block_size)
        poll = None if interruption is None else interruption.poll
        return Logits(forward(self._decoder, self._pool, self._attention, tokens, at_boundary=poll))

    def seconds(self) -> StepSeconds | None:
        """See HostStep."""
        return None


def host_step(
    decoder: Decoder,
    pool: KvPool,
    block_tables: npt.NDArray[np.int32],
    attention: PagedAttention,
    *,
    num_threads: int,
    screen_head: bool = True,
    rows_in_turns: int | None = 0,
) -> HostStep:
    """Return the native step where the model has one, else the stages; says which it is, and why.

    `block_tables` [tables, width] is read at every step. `screen_head`, `rows_in_turns`: see
    NativeStep.
    """
    try:
        from dualpace.models.native_step import NativeStep  # noqa: PLC0415
    except ImportError as error:
        log.warning("native kernels are not built (%s): decode steps run in torch", error)
        return StagedStep(decoder, pool, block_tables, attention)
    try:
        return NativeStep(
            decoder,
            pool,
            block_tables,
            num_threads,
            screen_head=screen_head,
            rows_in_turns=rows_in_turns,
        )
    except UnsupportedModelError as error:
        log.info("decode steps run stage by stage: %s", error)
        return StagedStep(decoder, pool, block_tables, attention)
