"""Executes the gpu-engine's plans with torch, on whatever device. Knows no policy."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from dualpace.gpu_engine.device import Device
from dualpace.gpu_engine.plan_copies import PlanCopies
from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.forward import PrefillChunk, TokenBatch, forward
from dualpace.models.kv_pool import KvPool
from dualpace.sampling.prompt_scores import score
from dualpace.sampling.row_sampler import RowSampler, SampleRow
from dualpace.sampling.slot_state import GrammarSource
from dualpace.scheduling.plan import GpuPlan, GpuRow, KvCopy, PromptScores, Result


class GpuRunner:
    """One model over one device pool, with the arena beside it."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        device: Device,
        device_pool: KvPool,
        host_pool: KvPool,
        attention: PagedAttention,
        grammars: GrammarSource,
        max_running: int,
        max_blocks_per_sequence: int,
        at_boundary: Callable[[], None] | None = None,
    ) -> None:
        self._at_boundary = at_boundary
        self._decoder = decoder
        self._device = device
        self._pool = device_pool
        self._attention = attention
        self._sampler = RowSampler(grammars)
        self._copies = PlanCopies(device, device_pool, host_pool)
        self._tables = _BlockTables(max_running, max_blocks_per_sequence, device.torch_device)

    @torch.inference_mode()
    def execute(self, plan: GpuPlan) -> list[Result]:
        """Run the plan.

        Copies, then one forward pass. Returns prompt scores where asked for, then a result for
        each row that samples.
        """
        self._copies.start(plan)
        if not plan.rows:
            return []
        rows = sorted(plan.rows, key=lambda row: len(row.tokens) > 1)  # decodes first
        streams = [row for row in rows if row.stream_to is not None]
        results: list[Result] = []
        logits = forward(
            self._decoder,
            self._pool,
            self._attention,
            self._batch(rows),
            at_boundary=self._at_boundary,
            after_write=(lambda layer: self._copies.stream(layer, streams)) if streams else None,
            with_hidden=self._scorer(rows, results),
        )
        self._copies.finish(streams)
        sampled = [_sample_row(row) for row in rows if row.samples]
        if sampled:
            results.extend(self._sampler.sample(logits, sampled))
        return results

    def _scorer(
        self, rows: Sequence[GpuRow], results: list[Result]
    ) -> Callable[[Tensor], None] | None:
        """Return what adds the scores of the rows' prompt tokens to `results`, if any are due."""
        ends = accumulate(len(row.tokens) for row in rows)
        scored = [(row, end - len(row.tokens)) for row, end in zip(rows, ends, strict=True)]
        scored = [(row, first) for row, first in scored if row.scored]
        if not scored:
            return None

        def add_scores(hidden: Tensor) -> None:
            for row, first in scored:
                # The state before a token is that of the position before it.
                begin = first + row.scored.start - 1 - row.start
                states = hidden[begin : begin + len(row.scored)]
                token_ids = row.known_tokens[row.scored.start : row.scored.stop]
                count = row.request.prompt_logprobs or 0
                tokens = score(states, self._decoder.head, token_ids, count)
                results.append(PromptScores(row.request_id, row.scored.start, tokens))

        return add_scores

    @torch.inference_mode()
    def copy_back(self, copies: Sequence[KvCopy]) -> None:
        """Begin copies to the device beside whatever it computes."""
        self._copies.back(copies)

    def completed_transfers(self) -> list[int]:
        """Return the request of each copy that has completed since the last call."""
        return self._copies.completed()

    def _batch(self, rows: Sequence[GpuRow]) -> TokenBatch:
        size = self._pool.block_size
        token_ids: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        logit_rows: list[int] = []
        spans: list[tuple[int, GpuRow]] = []
        decodes: list[GpuRow] = []
        for row in rows:
            if len(row.tokens) == 1:
                decodes.append(row)
            else:
                spans.append((len(token_ids), row))
            token_ids.extend(row.tokens)
            where = range(row.start, row.start + len(row.tokens))
            positions.extend(where)
            blocks.extend(row.blocks[p // size] for p in where)
            if row.samples:
                logit_rows.append(len(token_ids) - 1)
        tables = self._tables.update(rows)
        return TokenBatch(
            token_ids=self._int64(token_ids),
            positions=self._int64(positions),
            block_ids=self._int64(blocks),
            slot_ids=self._int64([p % size for p in positions]),
            block_tables=tables,
            decode_rows=self._int32([row.slot for row in decodes]),
            decode_lengths=self._int32([row.start + 1 for row in decodes]),
            prefills=[
                PrefillChunk(first, len(row.tokens), row.start, tables[row.slot])
                for first, row in spans
            ],
            logit_rows=self._int64(logit_rows),
        )

    def _int64(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device.torch_device)

    def _int32(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self._device.torch_device)


def _sample_row(row: GpuRow) -> SampleRow:
    return SampleRow(
        slot=row.slot,
        request=row.request,
        position=row.start + len(row.tokens),
        known=lambda begin, end: row.known_tokens[begin:end],
    )


class _BlockTables:
    """Block tables on the device, by slot; only what is new is written."""

    def __init__(self, num_slots: int, width: int, device: torch.device) -> None:
        self._tables = torch.zeros((num_slots, width), dtype=torch.int32, device=device)
        self._written: dict[int, tuple[Sequence[int], int]] = {}
        """By slot: the lease's block list that stands there, and how much of it.

        The list, not the request: a request that left and came back has other blocks.
        """

    def update(self, rows: Sequence[GpuRow]) -> Tensor:
        """Bring the rows' slots up to date; returns [slots, width] int32."""
        for row in rows:
            blocks, count = self._written.get(row.slot, (None, 0))
            if blocks is not row.blocks:
                count = 0
            if count < len(row.blocks):
                added = torch.tensor(row.blocks[count:], dtype=torch.int32)
                self._tables[row.slot, count : len(row.blocks)] = added.to(self._tables.device)
                self._written[row.slot] = (row.blocks, len(row.blocks))
        return self._tables
