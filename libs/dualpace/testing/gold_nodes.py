"""Gold models loaded for nodes of one process, and what such a node got held against the gold."""

from functools import cache

import pytest
import torch

from dualpace.checkpoint import fetch_demo_model, open_checkpoint
from dualpace.models.decoder import Decoder
from dualpace.models.loader import load_decoder
from dualpace.testing.gold import (
    TOLERANCE,
    GoldPrompt,
    smollm2_prompts,
    tiny_model,
    tiny_prompts,
)
from dualpace.testing.in_process import InProcessNode

DEMO = "smollm2"
"""Name of the demo model; others are tiny ones."""


@cache
def decoder_of(model: str) -> Decoder:
    """Return a gold model in float32, loaded once."""
    path = fetch_demo_model() if model == DEMO else tiny_model(model)
    return load_decoder(open_checkpoint(path), dtype=torch.float32, device=torch.device("cpu"))


def prompts_of(model: str) -> tuple[GoldPrompt, ...]:
    """Return a gold model's prompts."""
    return smollm2_prompts() if model == DEMO else tiny_prompts(model)


def check_gold(node: InProcessNode, request_id: int, prompt: GoldPrompt) -> None:
    """Assert that a greedy request with log-probabilities got the gold's."""
    received = node.received[request_id]
    assert prompt.first_wrong_step(received.token_ids()) is None
    assert len(received.tokens) == len(prompt.greedy_ids)
    for step, reference in enumerate(prompt.top_logprobs):
        event = received.tokens[len(prompt.token_ids) + step]
        if event.token_id != prompt.greedy_ids[step]:
            break
        assert event.logprobs is not None
        ours = dict(event.logprobs.top)
        for token, value in reference:
            assert ours.get(token, min(ours.values())) == pytest.approx(value, abs=TOLERANCE)
