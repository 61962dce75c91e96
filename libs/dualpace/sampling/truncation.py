"""Draws after top-k, top-p and min-p.

Each cut keeps only tokens above some weight. So a row is first reduced to the tokens above the
greatest weight that is certain to be low enough: usually a few dozen of a vocabulary. Only these
are put in order. Among tokens of equal logits the lower id counts as the better one, so that a cut
never depends on how a sort happens to order ties.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualpace.core.request import SamplingParams
from dualpace.sampling.inverse_cdf import draw

_WIDTHS = (64, 1024, 8192)
"""Candidates that rows are grouped by; rows with more of them are worked on with all tokens."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Limits of R rows: top_k int64 [R], V for none; top_p and min_p float64 [R]."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> "Cuts":
        """Gather the limits of rows."""
        top_k = [min(p.top_k or vocab_size, vocab_size) for p in params]
        return cls(
            torch.tensor(top_k, device=device),
            torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device),
            torch.tensor([p.min_p for p in params], dtype=torch.float64, device=device),
        )

    def rows(self, index: Tensor) -> "Cuts":
        """Return the limits of some rows."""
        return Cuts(self.top_k[index], self.top_p[index], self.min_p[index])


def is_cut(params: SamplingParams) -> bool:
    """Return whether any cut is asked for."""
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def draw_truncated(weights: Tensor, logits: Tensor, cuts: Cuts, noise: Tensor) -> Tensor:
    """Apply the cuts and draw a token id for each row, int64 [R].

    weights [R, V] float64, exp of the tempered logits, the greatest of each row being 1; logits
    [R, V] rank the tokens, because weights of different tokens may round to the same number; noise
    [R] in [0, 1). Top-p counts the mass that top-k left; min-p is a share of the greatest weight.
    """
    vocab_size = weights.shape[1]
    total = weights.cumsum(dim=-1)[:, -1]
    candidates = (weights >= _floors(weights, logits, cuts, total)[:, None]).sum(dim=-1)
    drawn = torch.empty_like(candidates)
    narrower = 0
    for width in (*(w for w in _WIDTHS if w < vocab_size), vocab_size):
        rows = ((candidates > narrower) & (candidates <= width)).nonzero()[:, 0]
        narrower = width
        if len(rows):
            ids, some_weights, some_logits = _candidates(
                weights[rows], logits[rows], candidates[rows], width
            )
            kept = _keep(some_weights, some_logits, cuts.rows(rows), total[rows], vocab_size)
            drawn[rows] = ids.gather(1, draw(kept, noise[rows])[:, None])[:, 0]
    return drawn


def _floors(weights: Tensor, logits: Tensor, cuts: Cuts, total: Tensor) -> Tensor:
    """Return for each row a weight below which no token survives, [R]."""
    vocab_size = weights.shape[1]
    # Tokens below this share of what top-p leaves out have less than that together. With top-k the
    # mass is not known yet.
    spare = (1.0 - cuts.top_p).clamp_min(0.0) * total / vocab_size
    floors = torch.where(cuts.top_k < vocab_size, 0.0, spare).maximum(cuts.min_p)
    limited = (cuts.top_k <= min(_WIDTHS[-1], vocab_size - 1)).nonzero()[:, 0]
    if len(limited):
        top_k = cuts.top_k[limited]
        best = logits[limited].topk(int(top_k.max()), dim=-1).indices
        last = weights[limited].gather(1, best.gather(1, top_k[:, None] - 1))[:, 0]
        floors[limited] = floors[limited].maximum(last)
    return floors


def _candidates(
    weights: Tensor, logits: Tensor, counts: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, weights and logits of each row's counts[r] greatest weights, each [R, width].

    They are in id order and filled up with tokens of no weight.
    """
    vocab_size = weights.shape[1]
    if width == vocab_size:
        return torch.arange(vocab_size, device=weights.device).expand_as(weights), weights, logits
    ids = weights.topk(width, dim=-1).indices
    surplus = torch.arange(width, device=ids.device) >= counts[:, None]
    ids = ids.masked_fill(surplus, vocab_size).sort(dim=-1).values
    filler = ids == vocab_size
    ids = ids.masked_fill(filler, 0)
    return (
        ids,
        weights.gather(1, ids).masked_fill(filler, 0.0),
        logits.gather(1, ids).masked_fill(filler, float("-inf")),
    )


def _keep(weights: Tensor, logits: Tensor, cuts: Cuts, total: Tensor, vocab_size: int) -> Tensor:
    """Return candidates' weights [R, N] with those that the cuts drop set to zero.

    total [R] is the mass of all tokens.
    """
    # Candidates lie in id order: a stable sort leaves those of equal logits in that order.
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    ranked = weights.gather(1, order)
    reached = ranked.cumsum(dim=-1)
    width = ranked.shape[1]
    within_k = reached.gather(1, cuts.top_k.clamp_max(width)[:, None] - 1)[:, 0]
    mass = cuts.top_p * torch.where(cuts.top_k < vocab_size, within_k, total)
    mass = torch.where(cuts.top_p < 1.0, mass, float("inf"))
    mass_above = torch.cat((torch.zeros_like(reached[:, :1]), reached[:, :-1]), dim=-1)
    kept = torch.arange(width, device=order.device) < cuts.top_k[:, None]
    kept &= mass_above < mass[:, None]
    kept &= ranked >= cuts.min_p[:, None]
    return torch.zeros_like(ranked).scatter(1, order, ranked.where(kept, 0.0))
