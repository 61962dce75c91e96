"""Executes the host's plans: batched paged decode over the arena. Knows no policy.

After each iteration it commits the step to the sequence table, so that the arena alone says how
far every sequence has come.
"""

import numpy as np
import torch

from dualpace.cpu_engine.borrowing import Borrower, NoBorrowing
from dualpace.ipc.arena import Arena
from dualpace.models.arena_pool import arena_pool
from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.forward import TokenBatch, forward
from dualpace.sampling.row_sampler import RowSampler, SampleRow
from dualpace.sampling.slot_state import GrammarSource
from dualpace.scheduling.plan import Failure, HostPlan, HostRow, Sample, TableWrite
from dualpace.scheduling.route import Route


class HostRunner:
    """One model over one arena."""

    def __init__(
        self,
        decoder: Decoder,
        arena: Arena,
        attention: PagedAttention,
        grammars: GrammarSource,
        borrower: Borrower | None = None,
    ) -> None:
        self._borrower = NoBorrowing() if borrower is None else borrower
        self._decoder = decoder
        self._arena = arena
        self._attention = attention
        self._sampler = RowSampler(grammars)
        self._pool = arena_pool(arena)
        self._block_tables = torch.from_numpy(arena.block_tables)

    def write_tables(self, writes: tuple[TableWrite, ...]) -> None:
        """Enter newly held blocks into the block tables."""
        for write in writes:
            end = write.first + len(write.blocks)
            self._arena.block_tables[write.slot, write.first : end] = write.blocks

    @torch.inference_mode()
    def execute(self, plan: HostPlan) -> list[Sample | Failure]:
        """Advance every row by one token, and commit the step."""
        results = None if plan.route is Route.HOST else self._borrower.run(plan)
        if results is None:
            results = self._compute(plan)
        self._commit(plan, results)
        return results

    def _compute(self, plan: HostPlan) -> list[Sample | Failure]:
        logits = forward(self._decoder, self._pool, self._attention, self._batch(plan))
        return self._sampler.sample(logits, [self._sample_row(row) for row in plan.rows])

    def _sample_row(self, row: HostRow) -> SampleRow:
        return SampleRow(
            slot=row.slot,
            request=row.request,
            position=row.position + 1,
            known=lambda begin, end: self._arena.tokens_of(row.slot, begin, end),
        )

    def _batch(self, plan: HostPlan) -> TokenBatch:
        rows = plan.rows
        slots = np.fromiter((row.slot for row in rows), np.int32, len(rows))
        positions = np.fromiter((row.position for row in rows), np.int64, len(rows))
        size = self._arena.geometry.block_size
        blocks = self._arena.block_tables[slots, positions // size]
        return TokenBatch(
            token_ids=torch.tensor([row.token_id for row in rows], dtype=torch.int64),
            positions=torch.from_numpy(positions),
            block_ids=torch.from_numpy(blocks.astype(np.int64)),
            slot_ids=torch.from_numpy(positions % size),
            block_tables=self._block_tables,
            decode_rows=torch.from_numpy(slots),
            decode_lengths=torch.from_numpy((positions + 1).astype(np.int32)),
            prefills=(),
            logit_rows=torch.arange(len(rows)),
        )

    def _commit(self, plan: HostPlan, results: list[Sample | Failure]) -> None:
        """Store the new tokens' ids, then how many tokens there are: the commit point."""
        tokens = {r.request_id: r.token_id for r in results if isinstance(r, Sample)}
        rows = [row for row in plan.rows if row.request_id in tokens]
        size = self._arena.geometry.block_size
        for row in rows:
            position = row.position + 1
            block = self._arena.block_tables[row.slot, position // size]
            self._arena.block_tokens[block, position % size] = tokens[row.request_id]
        self._arena.sequences.advance([r.slot for r in rows], [r.position + 2 for r in rows])
