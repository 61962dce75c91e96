"""Samples the rows of an iteration, so that a sequence that cannot be sampled ends alone.

Runs in the engine's thread. It keeps one state a slot, for the requests that adjust their logits;
a slot's state lasts until another request has the slot. Rows of other requests pay nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dualpace.core.errors import GrammarError
from dualpace.core.request import FinishReason, Request, SamplingParams
from dualpace.sampling.adjustment import adjust
from dualpace.sampling.sampler import sample
from dualpace.sampling.slot_state import GrammarSource, KnownTokens, SlotState
from dualpace.scheduling.plan import Failure, Sample

_NOT_FINITE = "the model's output is not finite (overflow in its data type?)"


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A row whose next token is to be chosen."""

    slot: int
    """Of the engine's own batch; no two rows have the same."""
    request: Request
    position: int
    """Of the token to choose, counted from the start of the prompt."""
    known: KnownTokens


@dataclass(frozen=True, slots=True)
class Greatest:
    """What whoever computed the logits has found in passing."""

    token_ids: Sequence[int]
    """The greatest of each row, the first of equals."""
    finite: Sequence[bool]
    """Whether all logits of a row are."""


class RowSampler:
    """The sampler of one engine."""

    def __init__(self, grammars: GrammarSource) -> None:
        self._grammars = grammars
        self._states: dict[int, SlotState] = {}

    def sample(
        self, logits: Tensor, rows: Sequence[SampleRow], greatest: Greatest | None = None
    ) -> list[Sample | Failure]:
        """Choose the next token of each row of logits [R, vocab] float32, or say why there is none.

        Reported log-probabilities are those of the logits as they come. With `greatest`, rows that
        take it are done without another look at their logits.
        """
        if greatest is None:
            return self._sample(logits, rows, logits.sum(dim=-1).isfinite().tolist())
        done = [
            greatest.finite[index] and takes_greatest(row.request.sampling)
            for index, row in enumerate(rows)
        ]
        samples: list[Sample | Failure] = [
            Sample(row.request.request_id, greatest.token_ids[index])
            for index, row in enumerate(rows)
            if done[index]
        ]
        rest = [index for index in range(len(rows)) if not done[index]]
        if rest:
            finite = [greatest.finite[index] for index in rest]
            selected = logits if len(rest) == len(rows) else logits[rest]
            samples += self._sample(selected, [rows[index] for index in rest], finite)
        return samples

    def _sample(
        self, logits: Tensor, rows: Sequence[SampleRow], finite: Sequence[bool]
    ) -> list[Sample | Failure]:
        failures = [
            Failure(row.request.request_id, _NOT_FINITE)
            for row, is_finite in zip(rows, finite, strict=True)
            if not is_finite
        ]
        good = [index for index, is_finite in enumerate(finite) if is_finite]
        raw = logits if len(good) == len(rows) else logits[good]
        rows = [rows[index] for index in good]
        if any(row.request.sampling.adjustments for row in rows):
            raw, adjusted, rows, refused = self._adjust(raw, rows)
            failures.extend(refused)
        else:
            adjusted = raw
        params = [row.request.sampling for row in rows]
        tokens = sample(raw, params, [row.position for row in rows], adjusted)
        samples = [
            Sample(row.request.request_id, token.token_id, token.logprobs)
            for row, token in zip(rows, tokens, strict=True)
        ]
        return [*failures, *samples]

    def _adjust(
        self, raw: Tensor, rows: Sequence[SampleRow]
    ) -> tuple[Tensor, Tensor, list[SampleRow], list[Failure]]:
        """Return raw and adjusted logits of the rows that can be sampled, those, and the others."""
        failures: dict[int, Failure] = {}
        states: dict[int, SlotState] = {}
        for index, row in enumerate(rows):
            if row.request.sampling.adjustments is None:
                continue
            try:
                states[index] = self._caught_up(row)
            except GrammarError as error:
                failures[index] = _refusal(row, str(error))
        adjusted = raw.clone()
        if states:
            indices = list(states)
            adjust(
                adjusted,
                indices,
                list(states.values()),
                [rows[index].position for index in indices],
            )
            for index in self._without_choice(adjusted, indices):
                failures[index] = _refusal(rows[index], "what was asked for allows no token here")
        kept = [index for index in range(len(rows)) if index not in failures]
        if failures:
            raw, adjusted = raw[kept], adjusted[kept]
        return raw, adjusted, [rows[index] for index in kept], list(failures.values())

    def _caught_up(self, row: SampleRow) -> SlotState:
        """Return the row's state at its position. Raises GrammarError, and forgets it then."""
        state = self._states.pop(row.slot, None)
        if state is None or state.request.request_id != row.request.request_id:
            state = SlotState.of(row.request, self._grammars)
        state.catch_up(row.position, row.known)
        self._states[row.slot] = state
        return state

    @staticmethod
    def _without_choice(adjusted: Tensor, indices: list[int]) -> list[int]:
        best = adjusted[indices].amax(dim=-1).tolist()
        return [i for i, value in zip(indices, best, strict=True) if value == float("-inf")]


def takes_greatest(params: SamplingParams) -> bool:
    """Return whether a row of such a request needs no more of its logits than `Greatest`."""
    return params.temperature == 0 and params.logprobs is None and params.adjustments is None


def _refusal(row: SampleRow, message: str) -> Failure:
    return Failure(row.request.request_id, message, FinishReason.REFUSED)
