"""Log-probabilities to report: of the model's own distribution, before temperature and cuts."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dualpace.core.messages import TokenLogprobs


def token_logprobs(
    logits: Tensor, token_ids: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Return for each row the log-probability of a token and of the `counts[r]` most likely ones.

    logits [R, vocab] float32. Equal ones come in order of id.
    """
    norms: list[float] = torch.logsumexp(logits.double(), dim=-1).tolist()
    return [
        _row_logprobs(row, token_id, count, norm)
        for row, token_id, count, norm in zip(logits, token_ids, counts, norms, strict=True)
    ]


def ranked_logprobs(logits: Tensor, token_ids: Sequence[int], count: int) -> list[TokenLogprobs]:
    """Return what `token_logprobs` does, each with the place of its token, 1 being the likeliest.

    logits [R, vocab] float32. Of equal tokens the lower id comes first.
    """
    ids = torch.tensor(token_ids, device=logits.device)[:, None]
    own = logits.gather(1, ids)
    before = (logits == own) & (torch.arange(logits.shape[1], device=logits.device) < ids)
    ranks: list[int] = ((logits > own) | before).sum(dim=-1).tolist()
    found = token_logprobs(logits, token_ids, [count] * len(ranks))
    return [replace(one, rank=rank + 1) for one, rank in zip(found, ranks, strict=True)]


def _row_logprobs(logits: Tensor, token_id: int, count: int, norm: float) -> TokenLogprobs:
    best = _best_ids(logits, min(count, len(logits)))
    values: list[float] = logits[best].tolist()
    top = tuple((token, v - norm) for token, v in zip(best.tolist(), values, strict=True))
    return TokenLogprobs(chosen=float(logits[token_id]) - norm, top=top)


def _best_ids(values: Tensor, count: int) -> Tensor:
    """Return the ids of the `count` greatest values, falling, equal ones by rising id."""
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=values.device)
    threshold = values.topk(count).values[-1]
    candidates = (values >= threshold).nonzero()[:, 0]
    order = values[candidates].sort(descending=True, stable=True).indices
    return candidates[order[:count]]
