"""Changes logits as requests ask: bias and penalties first, then what may not be chosen at all.

The definitions are those of the OpenAI API (presence and frequency penalties, logit_bias) and of
CTRL (Keskar et al. 2019, section 4.1: repetition penalty); the order is vLLM's. Every operation
is elementwise in float32: a row's result depends on nothing but that row, on either engine.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dualpace.sampling.slot_state import SlotState

_LARGEST = 3e38
"""A tiny repetition penalty must not make a logit infinite."""


def adjust(
    logits: Tensor, rows: Sequence[int], states: Sequence[SlotState], positions: Sequence[int]
) -> None:
    """Change some rows of logits [R, vocab] float32 in place; excluded tokens become -inf.

    states, positions: of rows[i], caught up to positions[i]. Stop tokens that `min_tokens` holds
    back are let through where nothing else would be left: a grammar that is complete ends the text.
    """
    _add_biases(logits, rows, states)
    _penalise(logits, rows, states)
    for row, state, position in zip(rows, states, positions, strict=True):
        if len(state.allowed_ids):
            _keep_only(logits[row], torch.from_numpy(state.allowed_ids))
        if state.allowed_words is not None:
            _keep_allowed(logits[row], torch.from_numpy(state.allowed_words))
        if state.holds_back_stops(position) and state.request.stop_token_ids:
            _hold_back(logits[row], state.request.stop_token_ids)


def _add_biases(logits: Tensor, rows: Sequence[int], states: Sequence[SlotState]) -> None:
    ids = np.concatenate([state.bias_ids for state in states])
    if len(ids):
        at = _rows_of(rows, [len(state.bias_ids) for state in states], logits)
        biases = torch.from_numpy(np.concatenate([state.biases for state in states]))
        # Ids of a row are distinct: no entry is written twice.
        columns = torch.from_numpy(ids).to(logits.device)
        logits[at, columns] = logits[at, columns] + biases.to(logits.device)


def _penalise(logits: Tensor, rows: Sequence[int], states: Sequence[SlotState]) -> None:
    lengths = [len(state.counts.ids) for state in states]
    if not sum(lengths):
        return

    def spread(values: Sequence[float]) -> Tensor:
        repeated = np.repeat(np.array(values, np.float32), lengths)
        return torch.from_numpy(repeated).to(logits.device)

    at = _rows_of(rows, lengths, logits)
    ids = np.concatenate([state.counts.ids for state in states])
    generated = np.concatenate([state.counts.generated for state in states])
    columns = torch.from_numpy(ids).to(logits.device)
    count = torch.from_numpy(generated).to(logits.device)
    values = logits[at, columns]
    repetition = spread([state.adjustments.repetition_penalty for state in states])
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= spread([state.adjustments.frequency_penalty for state in states]) * count
    values -= spread([state.adjustments.presence_penalty for state in states]) * (count > 0)
    logits[at, columns] = values.clamp_(-_LARGEST, _LARGEST)


def _rows_of(rows: Sequence[int], lengths: Sequence[int], logits: Tensor) -> Tensor:
    return torch.from_numpy(np.repeat(np.array(rows, np.int64), lengths)).to(logits.device)


def _keep_only(row: Tensor, ids: Tensor) -> None:
    ids = ids.to(row.device)
    kept = row[ids]
    row.fill_(float("-inf"))
    row[ids] = kept


def _keep_allowed(row: Tensor, words: Tensor) -> None:
    """Exclude tokens whose bit is not set in words [ceil(vocab / 32)] int32."""
    words = words.to(row.device)
    bits = (words[:, None] >> torch.arange(32, dtype=torch.int32, device=row.device)) & 1
    allowed = bits.reshape(-1)[: len(row)].bool()
    row.masked_fill_(~allowed, float("-inf"))


def _hold_back(row: Tensor, stop_token_ids: Sequence[int]) -> None:
    ids = torch.tensor(stop_token_ids, device=row.device)
    kept = row[ids]
    row[ids] = float("-inf")
    if bool(row.amax() == float("-inf")):
        row[ids] = kept
