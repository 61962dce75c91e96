"""Chooses the next token of each row.

A row's result depends on its logits, its params and its position alone.

Greedy rows take the greatest logit. Others: temperature, then top-k, top-p and min-p, then the
inverse of the cumulative distribution over token ids in id order, at the row's one uniform number.
Id order keeps the choice stable: rounding differences between engines move the edges of the
distribution a little, but never reorder it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualpace.core.errors import DualPaceError
from dualpace.core.messages import TokenLogprobs
from dualpace.core.request import SamplingParams
from dualpace.sampling.inverse_cdf import draw
from dualpace.sampling.logprobs import token_logprobs
from dualpace.sampling.noise import uniform
from dualpace.sampling.truncation import Cuts, draw_truncated, is_cut

_ROWS_AT_ONCE = 32
"""Bounds the float64 working set: 32 rows of 128k tokens take 32 MiB for each copy."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class LogitsError(DualPaceError):
    """Logits are not finite: the model's numbers are broken, and any choice would be nonsense."""


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    adjusted: Tensor | None = None,
) -> list[SampledToken]:
    """Choose one token for each row.

    logits [R, vocab] float32 on any device, finite; params and positions of length R; positions[r]
    is the position, counted from the start of the prompt, that the chosen token will have. Where
    `adjusted` is given, tokens are chosen by it: like logits, but for excluded tokens, which are
    -inf, though never all of a row. Reported log-probabilities are those of `logits` all the same.
    Raises LogitsError that names the rows.
    """
    assert logits.dim() == 2
    assert len(logits) == len(params) == len(positions)
    if not params:
        return []
    _require_finite(logits)
    choices = logits if adjusted is None else adjusted
    token_ids: list[int] = choices.argmax(dim=-1).tolist()
    random_rows = [row for row, p in enumerate(params) if p.temperature > 0]
    for begin in range(0, len(random_rows), _ROWS_AT_ONCE):
        rows = random_rows[begin : begin + _ROWS_AT_ONCE]
        selected = choices if len(rows) == len(params) else choices[rows]
        drawn = _draw(selected, [params[row] for row in rows], [positions[row] for row in rows])
        for row, token_id in zip(rows, drawn, strict=True):
            token_ids[row] = token_id
    logprobs: list[TokenLogprobs | None] = [None] * len(params)
    reported = [row for row, p in enumerate(params) if p.logprobs is not None]
    for begin in range(0, len(reported), _ROWS_AT_ONCE):
        rows = reported[begin : begin + _ROWS_AT_ONCE]
        counts = [params[row].logprobs or 0 for row in rows]
        found = token_logprobs(logits[rows], [token_ids[row] for row in rows], counts)
        for row, values in zip(rows, found, strict=True):
            logprobs[row] = values
    return [SampledToken(*pair) for pair in zip(token_ids, logprobs, strict=True)]


def _require_finite(logits: Tensor) -> None:
    # One cheap pass: a sum is finite only if its terms are. Terms are looked at one by one only if
    # it is not.
    if bool(logits.sum(dim=-1).isfinite().all()):
        return
    broken = (~logits.isfinite()).any(dim=-1).nonzero()[:, 0].tolist()
    if broken:
        raise LogitsError(
            f"logits of rows {broken[:8]} ({len(broken)} of {len(logits)}) are not finite"
        )


def _draw(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """Draw one token id for each row of logits [R, vocab]."""
    device = logits.device
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float64, device=device)
    numbers = [uniform(p.seed, at) for p, at in zip(params, positions, strict=True)]
    noise = torch.tensor(numbers, dtype=torch.float64, device=device)
    shifted = logits.double() - logits.amax(dim=-1, keepdim=True)
    weights = shifted.div_(temperature[:, None]).exp_()
    drawn = [0] * len(params)
    for cut in (False, True):
        rows = [row for row, p in enumerate(params) if is_cut(p) is cut]
        if not rows:
            continue
        # The whole batch is usually of one kind: it is not copied then.
        at = slice(None) if len(rows) == len(params) else rows
        if cut:
            cuts = Cuts.of([params[row] for row in rows], logits.shape[1], device)
            ids = draw_truncated(weights[at], logits[at], cuts, noise[at])
        else:
            ids = draw(weights[at], noise[at])
        for row, token_id in zip(rows, ids.tolist(), strict=True):
            drawn[row] = token_id
    return drawn
