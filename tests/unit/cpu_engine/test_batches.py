"""A plan's rows as arrays."""

from dataclasses import replace

import numpy as np

from dualpace.core.request import LogitAdjustments, Request, SamplingParams
from dualpace.cpu_engine.batches import decode_batch
from dualpace.scheduling.plan import HostRow

GREEDY = SamplingParams(temperature=0.0)


def row(slot: int, sampling: SamplingParams) -> HostRow:
    request = Request(
        request_id=slot, gateway_id=1, prompt_tokens=3, max_tokens=9, sampling=sampling
    )
    return HostRow(slot=slot, position=slot + 3, token_id=7 * slot, request=request)


def test_only_those_want_logits_who_take_more_than_the_greatest() -> None:
    wants = [
        (GREEDY, False),
        (replace(GREEDY, top_k=5, seed=3), False),
        (replace(GREEDY, logprobs=0), True),
        (replace(GREEDY, adjustments=LogitAdjustments(frequency_penalty=0.5)), True),
        (SamplingParams(), True),
    ]
    batch = decode_batch([row(slot, sampling) for slot, (sampling, _) in enumerate(wants)])
    assert batch.wanted is not None
    assert batch.wanted.dtype == np.bool_
    assert batch.wanted.tolist() == [wanted for _, wanted in wants]
    assert batch.token_ids.tolist() == [0, 7, 14, 21, 28]
    assert batch.rows.tolist() == [0, 1, 2, 3, 4]
    assert batch.lengths.tolist() == [4, 5, 6, 7, 8]
