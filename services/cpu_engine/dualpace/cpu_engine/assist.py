"""Dense Assist, the host's side: an iteration whose dense stages the gpu-engine computes.

Attention, and the KV cache, stay here. With two micro-batches the CPU attends to one while the
device has the other. The iteration keeps a deadline: if an answer does not come in time, it is
given up and the caller computes all of it again from its token ids, overwriting the same KV. After
that, assist is left alone for a while, and until the device has answered what it still owes.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dualpace.core.assist import CLOSED, AssistTerms
from dualpace.core.clock import Clock
from dualpace.cpu_engine.batches import decode_batch
from dualpace.ipc.arena import Arena
from dualpace.ipc.assist_channel import AssistChannel, AssistResult
from dualpace.ipc.assist_region import AssistRegion
from dualpace.ipc.bell import Bell
from dualpace.models.arena_pool import TORCH_DTYPES, arena_pool
from dualpace.models.assist_tensors import AssistTensors
from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.forward import TokenBatch, attend
from dualpace.models.host_step import Interruption, token_batch
from dualpace.scheduling.plan import Failure, HostPlan, HostRow, Sample

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """Neighbouring rows of a plan, and the channel they go through."""

    channel: AssistChannel
    tensors: AssistTensors
    rows: Sequence[HostRow]
    tokens: TokenBatch


class AssistedStep:
    """Runs plans with the device's help."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        arena: Arena,
        attention: PagedAttention,
        device_bell: Bell,
        clock: Clock,
        deadline_s: float,
        spin_s: float = 0.0,
    ) -> None:
        self._decoder = decoder
        self._arena = arena
        self._attention = attention
        self._clock = clock
        self._deadline_s = deadline_s
        self._spin_s = spin_s
        self._region = AssistRegion(arena)
        self._channels = self._region.channels(device_bell)
        dtype = TORCH_DTYPES[arena.geometry.kv_dtype]
        self._tensors = [AssistTensors.of(channel, dtype) for channel in self._channels]
        self._pool = arena_pool(arena)
        self._pause_s = _FIRST_PAUSE_S
        self._paused_until_s = 0.0
        self.iterations = 0
        """Completed with the device's help."""
        self.misses = 0
        """Given up."""

    def terms(self, *, device_present: bool) -> AssistTerms:
        """Return what the device offers; closed while it had better not be asked."""
        if not device_present or self._clock.now() < self._paused_until_s:
            return CLOSED
        if not all(channel.free for channel in self._channels):
            return CLOSED
        return self._region.terms()

    def run(
        self, plan: HostPlan, interruption: Interruption | None = None
    ) -> list[Sample | Failure] | None:
        """Advance the plan's rows by one token. None: the caller must compute them itself."""
        if not self._fits(plan.micro_batches):
            return None
        deadline_s = self._clock.now() + self._deadline_s
        batches = self._split(plan)
        results: list[Sample | Failure] = []
        for batch in batches:
            self._enter(batch)
            batch.channel.call(0, len(batch.rows))
        for layer in range(self._decoder.num_layers):
            if interruption is not None:
                interruption.poll()
            for batch in batches:
                if not self._answered(batch, deadline_s):
                    self._give_up(layer)
                    return None
                self._attend(layer, batch)
                batch.channel.call(layer + 1, len(batch.rows))
        for batch in batches:
            if not self._answered(batch, deadline_s):
                self._give_up(self._decoder.num_layers)
                return None
            given = batch.channel.results(len(batch.rows))
            results += [_outcome(row, r) for row, r in zip(batch.rows, given, strict=True)]
        self.iterations += 1
        self._pause_s = _FIRST_PAUSE_S
        return results

    def _fits(self, micro_batches: Sequence[int]) -> bool:
        most = self._arena.geometry.assist_rows
        return 0 < len(micro_batches) <= len(self._channels) and max(micro_batches) <= most

    def _split(self, plan: HostPlan) -> list[_MicroBatch]:
        batches: list[_MicroBatch] = []
        begin = 0
        for count, channel, tensors in zip(
            plan.micro_batches, self._channels, self._tensors, strict=False
        ):
            rows = plan.rows[begin : begin + count]
            begin += count
            tokens = token_batch(
                decode_batch(rows), self._arena.block_tables, self._pool.block_size
            )
            batches.append(_MicroBatch(channel, tensors, rows, tokens))
        return batches

    @staticmethod
    def _enter(batch: _MicroBatch) -> None:
        records = batch.channel.rows[: len(batch.rows)]
        records["token_id"] = [row.token_id for row in batch.rows]
        records["position"] = [row.position for row in batch.rows]
        records["slot"] = [row.slot for row in batch.rows]

    def _attend(self, layer: int, batch: _MicroBatch) -> None:
        count, tensors = len(batch.rows), batch.tensors
        where = batch.tokens
        self._pool.write(
            layer, where.block_ids, where.slot_ids, tensors.k[:count], tensors.v[:count]
        )
        q = tensors.q[:count].to(self._decoder.dtype)
        tensors.attention[:count] = attend(
            self._decoder, self._pool, self._attention, layer, q, where
        )

    def _answered(self, batch: _MicroBatch, deadline_s: float) -> bool:
        left_s = max(0.0, deadline_s - self._clock.now())
        return batch.channel.wait(left_s, spin_s=self._spin_s)

    def _give_up(self, boundary: int) -> None:
        self.misses += 1
        self._paused_until_s = self._clock.now() + self._pause_s
        log.warning(
            "no good answer from assist at boundary %d within %g s: this iteration, and those of "
            "the next %g s, are computed here",
            boundary,
            self._deadline_s,
            self._pause_s,
        )
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def _outcome(row: HostRow, result: AssistResult) -> Sample | Failure:
    if result.token_id is None:
        return Failure(row.request_id, result.message, result.reason)
    return Sample(row.request_id, result.token_id, result.logprobs, assisted=True)
