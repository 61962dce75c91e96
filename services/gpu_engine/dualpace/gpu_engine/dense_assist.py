"""Dense Assist, the device's side: computes dense stages for the host's batches.

It is asked at the boundaries between the device's own stages, and whenever the device has nothing
to do. The hidden state of a micro-batch stays here between its calls; the last one samples. The
lease bounds what is lent while the device has work of its own: a call that is not granted waits,
and the host, who has a deadline, goes on alone if that takes too long. Nothing here waits for the
host, and no call can fail the engine.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualpace.core.clock import Clock
from dualpace.core.request import Request
from dualpace.gpu_engine.device import Device
from dualpace.ipc.arena import Arena
from dualpace.ipc.assist_channel import AssistChannel, AssistResult
from dualpace.ipc.assist_layout import STATUS_DONE, STATUS_FAILED
from dualpace.models.assist_tensors import AssistTensors
from dualpace.models.decoder import Decoder
from dualpace.sampling.row_sampler import RowSampler, SampleRow
from dualpace.sampling.slot_state import GrammarSource
from dualpace.scheduling.lease import AssistLease
from dualpace.scheduling.plan import Failure, Sample

log = logging.getLogger(__name__)


class _CallError(Exception):
    """A call makes no sense, for instance because its rows were taken back meanwhile."""


@dataclass(slots=True)
class _Batch:
    """A micro-batch on its way through the layers."""

    slots: list[int]
    positions: Tensor
    hidden: Tensor


class DenseAssist:
    """Serves the calls of one host."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        device: Device,
        arena: Arena,
        channels: Sequence[AssistChannel],
        grammars: GrammarSource,
        lease: AssistLease,
        clock: Clock,
    ) -> None:
        self._decoder = decoder
        self._device = device
        self._channels = channels
        self._lease = lease
        self._clock = clock
        self._stages = _Stages(decoder, device.torch_device, channels)
        self._sampler = _Sampler(arena, RowSampler(grammars))
        self._busy: set[int] = set()
        self.calls = 0
        """Answered so far."""
        self.failures = 0
        self.lent_s = 0.0
        """Time that calls have taken."""

    def serve(self, *, leased: bool) -> bool:
        """Serve who waits; returns whether anybody did.

        `leased`: the device has work of its own, and the lease decides.
        """
        served = False
        for index, channel in enumerate(self._channels):
            if not channel.waiting or index in self._busy:
                continue
            if leased and not self._lease.granted(self._clock.now()):
                break
            self._serve(index, leased)
            served = True
        return served

    def _serve(self, index: int, leased: bool) -> None:
        channel = self._channels[index]
        boundary = channel.boundary
        started_s = self._clock.now()
        self._busy.add(index)

        def finish(logits: Tensor | None, error: Exception | None) -> None:
            if error is None and logits is not None:
                try:
                    batch = self._stages.batch(index)
                    channel.put_results(self._sampler.sample(logits, batch.slots, batch.positions))
                except Exception as failure:  # noqa: BLE001 - told below, and to the host
                    error = failure
            taken_s = self._clock.now() - started_s
            self._note(taken_s, leased, error)
            self._busy.discard(index)
            channel.answer(STATUS_DONE if error is None else STATUS_FAILED, taken_s)

        self._device.lend(lambda: self._stages.run(index, boundary, channel.num_rows), finish)

    def _note(self, taken_s: float, leased: bool, error: Exception | None) -> None:
        self.calls += 1
        self.lent_s += taken_s
        if leased:
            self._lease.charge(taken_s)
        if isinstance(error, _CallError):
            self.failures += 1
            log.info("assist refused: %s", error)
        elif error is not None:
            self.failures += 1
            log.error("an assist call failed; the host goes on alone", exc_info=error)


class _Stages:
    """The dense stages at each boundary, and the hidden states in between."""

    def __init__(
        self, decoder: Decoder, device: torch.device, channels: Sequence[AssistChannel]
    ) -> None:
        self._decoder = decoder
        self._device = device
        self._channels = channels
        self._tensors: list[AssistTensors] = []
        self._batches: dict[int, _Batch] = {}

    def batch(self, index: int) -> _Batch:
        """Return the micro-batch in a channel."""
        return self._batches[index]

    @torch.inference_mode()
    def run(self, index: int, boundary: int, count: int) -> Tensor | None:
        """Run the stages at a boundary; returns logits, float32 [count, V], at the last one."""
        decoder, tensors = self._decoder, self._tensors_of(index)
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

    def _tensors_of(self, index: int) -> AssistTensors:
        if not self._tensors:
            self._tensors = [AssistTensors.of(c, self._decoder.dtype) for c in self._channels]
        return self._tensors[index]

    def _begin(self, index: int, count: int) -> _Batch:
        channel = self._channels[index]
        if not 0 < count <= channel.geometry.rows:
            raise _CallError(f"{count} rows")
        rows = channel.rows[:count]
        token_ids = rows["token_id"].astype(np.int64)
        positions = rows["position"].astype(np.int64)
        if token_ids.min() < 0 or token_ids.max() >= self._decoder.config.vocab_size:
            raise _CallError("a token id is out of range")
        if positions.min() < 0 or positions.max() >= self._decoder.max_positions:
            raise _CallError("a position is out of range")
        batch = self._batches[index] = _Batch(
            slots=rows["slot"].tolist(),
            positions=torch.from_numpy(positions).to(self._device, non_blocking=True),
            hidden=self._decoder.embed(torch.from_numpy(token_ids).to(self._device)),
        )
        return batch

    def _going_on(self, index: int, boundary: int, count: int) -> _Batch:
        batch = self._batches.get(index)
        if batch is None or len(batch.slots) != count or boundary > self._decoder.num_layers:
            raise _CallError(f"boundary {boundary} of a batch that was not begun")
        return batch


class _Sampler:
    """Chooses tokens for the host's rows: what is known of them stands in the arena."""

    def __init__(self, arena: Arena, sampler: RowSampler) -> None:
        self._arena = arena
        self._sampler = sampler
        self._requests: dict[int, Request] = {}
        """By slot, as last read."""

    def sample(self, logits: Tensor, slots: Sequence[int], positions: Tensor) -> list[AssistResult]:
        """Return a result for each row."""
        rows = [
            self._row(slot, position)
            for slot, position in zip(slots, positions.tolist(), strict=True)
        ]
        outcomes = {r.request_id: r for r in self._sampler.sample(logits, rows)}
        return [_result(outcomes[row.request.request_id]) for row in rows]

    def _row(self, slot: int, position: int) -> SampleRow:
        request_id = self._arena.sequences.request_id(slot)
        if request_id is None:
            raise _CallError(f"slot {slot} is empty")
        request = self._requests.get(slot)
        if request is None or request.request_id != request_id:
            request = self._requests[slot] = self._arena.sequences.read(slot)[0]
        return SampleRow(
            slot=slot,
            request=request,
            position=position + 1,
            known=lambda begin, end: self._arena.tokens_of(slot, begin, end),
        )


def _result(outcome: Sample | Failure) -> AssistResult:
    if isinstance(outcome, Sample):
        return AssistResult(outcome.token_id, outcome.logprobs)
    return AssistResult(None, reason=outcome.reason, message=outcome.message)
