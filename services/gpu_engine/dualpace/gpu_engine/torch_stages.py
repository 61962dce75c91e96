"""The dense stages that are lent, computed by torch; the last one samples, by the arena's word."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualpace.gpu_engine.dense_assist import AssistCallError
from dualpace.gpu_engine.host_requests import HostRequests
from dualpace.ipc.arena import Arena
from dualpace.ipc.assist_channel import AssistChannel, AssistResult
from dualpace.models.assist_tensors import AssistTensors
from dualpace.models.decoder import Decoder
from dualpace.sampling.row_sampler import RowSampler, SampleRow
from dualpace.sampling.slot_state import GrammarSource
from dualpace.scheduling.plan import Failure, Sample


@dataclass(slots=True)
class _Batch:
    """A micro-batch on its way through the layers."""

    slots: list[int]
    positions: Tensor
    hidden: Tensor


class TorchStages:
    """The dense stages at each boundary, and the hidden states in between."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        arena: Arena,
        channels: Sequence[AssistChannel],
        grammars: GrammarSource,
    ) -> None:
        self._decoder = decoder
        self._device = decoder.device
        self._channels = channels
        self._sampler = _Sampler(arena, RowSampler(grammars))
        self._tensors = [AssistTensors.of(channel, decoder.dtype) for channel in channels]
        self._batches: dict[int, _Batch] = {}

    @property
    def last_boundary(self) -> int:
        """The boundary behind the last layer."""
        return self._decoder.num_layers

    def results(self, index: int, logits: Tensor | None) -> list[AssistResult]:
        """Sample."""
        assert logits is not None
        batch = self._batches[index]
        return self._sampler.sample(logits, batch.slots, batch.positions)

    @torch.inference_mode()
    def run(self, index: int, boundary: int, count: int) -> Tensor | None:
        """Run the stages at a boundary; returns logits, float32 [count, V], at the last one."""
        decoder, tensors = self._decoder, self._tensors[index]
        if boundary == 0:
            batch = self._begin(index, count)
        else:
            batch = self._going_on(index, boundary, count)
            attended = tensors.attention[:count].to(self._device, non_blocking=True)
            batch.hidden = decoder.post_attention(boundary - 1, attended, batch.hidden)
        if boundary == decoder.num_layers:
            return decoder.head(batch.hidden)
        q, k, v = decoder.pre_attention(boundary, batch.hidden, batch.positions)
        for target, values in ((tensors.q, q), (tensors.k, k), (tensors.v, v)):
            target[:count].copy_(values, non_blocking=True)
        return None

    def _begin(self, index: int, count: int) -> _Batch:
        channel = self._channels[index]
        if not 0 < count <= channel.geometry.rows:
            raise AssistCallError(f"{count} rows")
        rows = channel.rows[:count]
        token_ids = rows["token_id"].astype(np.int64)
        positions = rows["position"].astype(np.int64)
        if token_ids.min() < 0 or token_ids.max() >= self._decoder.config.vocab_size:
            raise AssistCallError("a token id is out of range")
        if positions.min() < 0 or positions.max() >= self._decoder.max_positions:
            raise AssistCallError("a position is out of range")
        batch = self._batches[index] = _Batch(
            slots=rows["slot"].tolist(),
            positions=torch.from_numpy(positions).to(self._device, non_blocking=True),
            hidden=self._decoder.embed(torch.from_numpy(token_ids).to(self._device)),
        )
        return batch

    def _going_on(self, index: int, boundary: int, count: int) -> _Batch:
        batch = self._batches.get(index)
        if batch is None or len(batch.slots) != count or boundary > self._decoder.num_layers:
            raise AssistCallError(f"boundary {boundary} of a batch that was not begun")
        return batch


class _Sampler:
    """Chooses tokens for the host's rows: what is known of them stands in the arena."""

    def __init__(self, arena: Arena, sampler: RowSampler) -> None:
        self._arena = arena
        self._sampler = sampler
        self._requests = HostRequests(arena)

    def sample(self, logits: Tensor, slots: Sequence[int], positions: Tensor) -> list[AssistResult]:
        """Return a result for each row."""
        rows = [
            self._row(slot, position)
            for slot, position in zip(slots, positions.tolist(), strict=True)
        ]
        outcomes = {r.request_id: r for r in self._sampler.sample(logits, rows)}
        return [_result(outcomes[row.request.request_id]) for row in rows]

    def _row(self, slot: int, position: int) -> SampleRow:
        return SampleRow(
            slot=slot,
            request=self._requests.of(slot),
            position=position + 1,
            known=lambda begin, end: self._arena.tokens_of(slot, begin, end),
        )


def _result(outcome: Sample | Failure) -> AssistResult:
    if isinstance(outcome, Sample):
        return AssistResult(outcome.token_id, outcome.logprobs)
    return AssistResult(None, reason=outcome.reason, message=outcome.message)
