"""Decode steps on the native kernels: one call for all layers, no allocation, no torch.

Importing this module needs the kernel library.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from dualpace.kernels import StepRows, narrow_arithmetic
from dualpace.models.decoder import Decoder
from dualpace.models.host_step import DecodeBatch, Interruption, Logits, StepSeconds
from dualpace.models.kv_pool import KvPool
from dualpace.models.native_decoder import layer_bytes, native_decoder, packed_of
from dualpace.models.rows_in_turns import KeysInTurns, least_rows_in_turns


class NativeStep:
    """A `HostStep`. Arithmetic is fp32; with a bfloat16 decoder, activations may be rounded."""

    def __init__(
        self,
        decoder: Decoder,
        pool: KvPool,
        block_tables: npt.NDArray[np.int32],
        num_threads: int,
        *,
        screen_head: bool = True,
        rows_in_turns: int | None = 0,
    ) -> None:
        """Raise UnsupportedModelError if the model has no native form.

        `screen_head`: find greatest logits by the head in int16, where that is faster.
        `rows_in_turns`: see `HostDecoder.step`; None: measure from where on it pays, and see at
        every step whether it has keys enough.
        """
        faster = decoder.dtype is not torch.bfloat16 and narrow_arithmetic() != "float32"
        self._native = native_decoder(
            decoder, screening_threads=num_threads if screen_head and faster else 0
        )
        self._num_layers = decoder.num_layers
        self._vocab_size = decoder.config.vocab_size
        self._rounding = decoder.dtype is torch.bfloat16
        self._kv = pool.tensor
        self._tables = block_tables
        self._num_threads = num_threads
        self.rows_in_turns = (
            self._measure_rows_in_turns(decoder) if rows_in_turns is None else rows_in_turns
        )
        """From how many rows on two groups of them go through the layers; 0: never."""
        self._keys_in_turns = self._needed_keys(decoder, pool) if rows_in_turns is None else None
        self._reserve(1)

    def __call__(self, batch: DecodeBatch, interruption: Interruption | None = None) -> Logits:
        """See HostStep. What is returned is overwritten by the next step."""
        capacity = len(batch.token_ids)
        if interruption is not None:
            capacity += interruption.most_newcomers
        if capacity > len(self._best):
            self._reserve(max(capacity, 2 * len(self._best)))
        size = self._native.step(
            token_ids=batch.token_ids,
            rows=batch.rows,
            lengths=batch.lengths,
            block_tables=self._tables,
            kv=self._kv,
            logits=self._logits[:capacity],
            best=self._best[:capacity],
            finite=self._finite[:capacity],
            wanted=batch.wanted,
            num_threads=self._num_threads,
            rounding=self._rounding,
            rows_in_turns=self.rows_in_turns if self._in_turns(batch) else 0,
            flag=None if interruption is None else interruption.flag,
            serve=None if interruption is None else self._serve(interruption),
        )
        return Logits(self._logits[:size], self._best[:size], self._finite[:size])

    @property
    def screen_bytes(self) -> int:
        """Size of the head's second form; 0: there is none."""
        return self._native.screen_bytes

    @property
    def passes_in_turns(self) -> int:
        """How often rows went through layers in turns."""
        return self._native.passes_in_turns

    def seconds(self) -> StepSeconds:
        """See HostStep."""
        return StepSeconds(*self._native.stage_seconds)

    def _measure_rows_in_turns(self, decoder: Decoder) -> int:
        packed = packed_of(decoder.layers[0].qkv)
        return least_rows_in_turns(packed, rounding=self._rounding, num_threads=self._num_threads)

    @staticmethod
    def _needed_keys(decoder: Decoder, pool: KvPool) -> KeysInTurns:
        _, _, _, kv_heads, _, head_dim = pool.tensor.shape
        return KeysInTurns(
            sum(layer_bytes(layer) for layer in decoder.layers),
            2 * kv_heads * head_dim * pool.tensor.itemsize,
            [layer.config.window for layer in decoder.layers],
        )

    def _in_turns(self, batch: DecodeBatch) -> bool:
        return self._keys_in_turns is None or self._keys_in_turns.enough(batch.lengths)

    def _serve(self, interruption: Interruption) -> Callable[[int | None], StepRows | None]:
        def serve(behind: int | None) -> StepRows | None:
            came = interruption.serve(None if behind is None else behind / self._num_layers)
            return None if came is None else (came.token_ids, came.rows, came.lengths)

        return serve

    def _reserve(self, size: int) -> None:
        self._logits = torch.empty(size, self._vocab_size)
        self._best = np.empty(size, np.int64)
        self._finite = np.empty(size, np.bool_)
