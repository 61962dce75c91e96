"""Decode steps on the native kernels: one call for all layers, no allocation, no torch.

Importing this module needs the kernel library.
"""

import numpy as np
import numpy.typing as npt
import torch

from dualpace.models.decoder import Decoder
from dualpace.models.host_step import DecodeBatch, Interruption, Logits, StepSeconds
from dualpace.models.kv_pool import KvPool
from dualpace.models.native_decoder import native_decoder


class NativeStep:
    """A `HostStep`. Arithmetic is fp32; with a bfloat16 decoder, activations may be rounded."""

    def __init__(
        self,
        decoder: Decoder,
        pool: KvPool,
        block_tables: npt.NDArray[np.int32],
        num_threads: int,
    ) -> None:
        """Raise UnsupportedModelError if the model has no native form."""
        self._native = native_decoder(decoder)
        self._vocab_size = decoder.config.vocab_size
        self._rounding = decoder.dtype is torch.bfloat16
        self._kv = pool.tensor
        self._tables = block_tables
        self._num_threads = num_threads
        self._reserve(1)

    def __call__(self, batch: DecodeBatch, interruption: Interruption | None = None) -> Logits:
        """See HostStep. What is returned is overwritten by the next step."""
        size = len(batch.token_ids)
        if size > len(self._best):
            self._reserve(max(size, 2 * len(self._best)))
        logits = self._logits[:size]
        self._native.step(
            token_ids=batch.token_ids,
            rows=batch.rows,
            lengths=batch.lengths,
            block_tables=self._tables,
            kv=self._kv,
            logits=logits,
            best=self._best[:size],
            finite=self._finite[:size],
            num_threads=self._num_threads,
            rounding=self._rounding,
            flag=None if interruption is None else interruption.flag,
            serve=None if interruption is None else interruption.serve,
        )
        return Logits(logits, self._best[:size], self._finite[:size])

    def seconds(self) -> StepSeconds:
        """See HostStep."""
        return StepSeconds(*self._native.stage_seconds)

    def _reserve(self, size: int) -> None:
        self._logits = torch.empty(size, self._vocab_size)
        self._best = np.empty(size, np.int64)
        self._finite = np.empty(size, np.bool_)
