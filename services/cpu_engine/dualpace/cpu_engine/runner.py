"""Executes the host's plans: batched paged decode over the arena. Knows no policy.

After each iteration it commits the step to the sequence table, so that the arena alone says how
far every sequence has come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from dualpace.cpu_engine.batches import decode_batch
from dualpace.cpu_engine.borrowing import Borrower, NoBorrowing
from dualpace.cpu_engine.meanwhile import Meanwhile
from dualpace.ipc.arena import Arena
from dualpace.models.host_step import DecodeBatch, HostStep, Interruption, Logits
from dualpace.sampling.row_sampler import Greatest, RowSampler, SampleRow
from dualpace.sampling.slot_state import GrammarSource
from dualpace.scheduling.plan import Failure, HostPlan, HostRow, Sample, TableWrite
from dualpace.scheduling.route import Route


class HostRunner:
    """One model over one arena: `step` runs over the arena's KV and block tables."""

    def __init__(
        self,
        step: HostStep,
        arena: Arena,
        grammars: GrammarSource,
        borrower: Borrower | None = None,
    ) -> None:
        self._borrower = NoBorrowing() if borrower is None else borrower
        self._step = step
        self._arena = arena
        self._sampler = RowSampler(grammars)
        self._facts: dict[str, float] = {}

    def add_gauges(self, facts: Mapping[str, float]) -> None:
        """Add numbers that do not change to the gauges."""
        self._facts.update(facts)

    def gauges(self) -> dict[str, float]:
        """Return numbers for metrics: what was added, and where the time of steps went."""
        seconds = self._step.seconds()
        stages = {} if seconds is None else asdict(seconds)
        return self._facts | {f"{stage}_seconds_total": s for stage, s in stages.items()}

    def write_tables(self, writes: tuple[TableWrite, ...]) -> None:
        """Enter newly held blocks into the block tables."""
        for write in writes:
            end = write.first + len(write.blocks)
            self._arena.block_tables[write.slot, write.first : end] = write.blocks

    def execute(self, plan: HostPlan, meanwhile: Meanwhile | None = None) -> list[Sample | Failure]:
        """Advance every row by one token, those who join included, and commit the step."""
        rows = [*plan.rows]
        interruption = None if meanwhile is None else _interruption(meanwhile, rows)
        lent = plan.route is not Route.HOST
        results = self._borrower.run(plan, interruption) if lent else None
        if results is None:
            results = self._compute(rows, interruption)
        self._commit(rows, results)
        return results

    def _compute(
        self, rows: Sequence[HostRow], interruption: Interruption | None
    ) -> list[Sample | Failure]:
        logits = self._step(decode_batch(rows), interruption)
        wanted = [self._sample_row(row) for row in rows]
        return self._sampler.sample(logits.values, wanted, _greatest(logits))

    def _sample_row(self, row: HostRow) -> SampleRow:
        return SampleRow(
            slot=row.slot,
            request=row.request,
            position=row.position + 1,
            known=lambda begin, end: self._arena.tokens_of(row.slot, begin, end),
        )

    def _commit(self, computed: Sequence[HostRow], results: list[Sample | Failure]) -> None:
        """Store the new tokens' ids, then how many tokens there are: the commit point."""
        tokens = {r.request_id: r.token_id for r in results if isinstance(r, Sample)}
        rows = [row for row in computed if row.request_id in tokens]
        size = self._arena.geometry.block_size
        for row in rows:
            position = row.position + 1
            block = self._arena.block_tables[row.slot, position // size]
            self._arena.block_tokens[block, position % size] = tokens[row.request_id]
        self._arena.sequences.advance([r.slot for r in rows], [r.position + 2 for r in rows])


def _interruption(meanwhile: Meanwhile, rows: list[HostRow]) -> Interruption:
    """Return the same for a step; who joins is added to the rows."""

    def serve(behind: float | None) -> DecodeBatch | None:
        came = meanwhile.serve(behind)
        rows.extend(came)
        return decode_batch(came) if came else None

    return Interruption(meanwhile.flag, serve, meanwhile.most_newcomers)


def _greatest(logits: Logits) -> Greatest | None:
    if logits.best is None or logits.finite is None:
        return None
    return Greatest(logits.best.tolist(), logits.finite.tolist())
