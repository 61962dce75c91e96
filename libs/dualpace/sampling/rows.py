"""Samples the rows of an iteration, so that a sequence with broken numbers ends alone."""

from collections.abc import Sequence

from torch import Tensor

from dualpace.core.request import SamplingParams
from dualpace.sampling.sampler import sample
from dualpace.scheduling.plan import Failure, Sample


def sample_rows(
    logits: Tensor,
    request_ids: Sequence[int],
    params: Sequence[SamplingParams],
    positions: Sequence[int],
) -> list[Sample | Failure]:
    """Choose the next token of each row of logits [R, vocab] float32, or say why there is none."""
    finite: list[bool] = logits.sum(dim=-1).isfinite().tolist()
    good = [row for row, is_finite in enumerate(finite) if is_finite]
    results: list[Sample | Failure] = [
        Failure(request_ids[row], "the model's output is not finite (overflow in its data type?)")
        for row, is_finite in enumerate(finite)
        if not is_finite
    ]
    selected = logits if len(good) == len(finite) else logits[good]
    tokens = sample(selected, [params[row] for row in good], [positions[row] for row in good])
    results.extend(
        Sample(request_ids[row], token.token_id, token.logprobs)
        for row, token in zip(good, tokens, strict=True)
    )
    return results
