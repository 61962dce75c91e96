"""Log-probabilities of a prompt's own tokens, a few positions at a time.

The logits of a long prompt would take more memory than the model's weights; so the head is applied
to a bounded number of positions, and only what is reported is kept.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from dualpace.core.messages import TokenLogprobs
from dualpace.sampling.logprobs import ranked_logprobs

_POSITIONS_AT_ONCE = 32


def score(
    hidden: Tensor, head: Callable[[Tensor], Tensor], token_ids: Sequence[int], count: int
) -> tuple[TokenLogprobs, ...]:
    """Return the log-probability of each token, its rank, and the `count` likeliest ones.

    hidden [N, hidden_size]: the states that precede the tokens; head: to logits [n, vocab] float32.
    """
    scores: list[TokenLogprobs] = []
    for begin in range(0, len(token_ids), _POSITIONS_AT_ONCE):
        end = min(begin + _POSITIONS_AT_ONCE, len(token_ids))
        scores.extend(ranked_logprobs(head(hidden[begin:end]), token_ids[begin:end], count))
    return tuple(scores)
