"""What requests change about their sampling holds wherever they live and however they move.

Both engines run for real in one process; the state of penalties and grammars is rebuilt by the
engine that gets a request, from its token ids.
"""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
import torch
from llguidance import LLMatcher
from torch.nn.functional import scaled_dot_product_attention

from dualpace.checkpoint import Checkpoint, open_checkpoint
from dualpace.core.messages import Cancel, Reserve, TokenLogprobs
from dualpace.core.request import Engine, FinishReason, LogitAdjustments, SamplingParams
from dualpace.grammar import Grammars, vocabulary_of
from dualpace.models.decoder import Decoder
from dualpace.models.host_attention import host_attention
from dualpace.models.loader import load_decoder
from dualpace.testing.gold import TOLERANCE, tiny_model, tiny_prompts
from dualpace.testing.in_process import InProcessNode, NodeSizes

MODEL = "llama3_rope"
PROMPTS = tiny_prompts(MODEL)
PLACEMENTS = ["gpu", "cpu", "random:3", "random:4"]
END = 2
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
DATE = r"[12][0-9]{3}-[01][0-9]-[0-3][0-9]"

ADJUSTMENTS = {
    "penalties": LogitAdjustments(
        presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.3
    ),
    "bias": LogitAdjustments(logit_bias=((81, 3.0), (82, 3.0), (45, -100.0))),
    "allowed": LogitAdjustments(allowed_token_ids=(81, 82, 83, 84, 85), frequency_penalty=1.0),
    "min_tokens": LogitAdjustments(min_tokens=20, logit_bias=((END, 100.0),)),
    "json": LogitAdjustments(grammar=JSON, repetition_penalty=1.1),
    "regex": LogitAdjustments(grammar=LLMatcher.grammar_from_regex(DATE)),
    "none": None,
}


@cache
def checkpoint() -> Checkpoint:
    return open_checkpoint(tiny_model(MODEL))


@cache
def decoder() -> Decoder:
    return load_decoder(checkpoint(), dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    with closing(Grammars(vocabulary_of(checkpoint()))) as found:
        yield found


def make_node(
    run_dir: Path, placement: str, grammars: Grammars, sizes: NodeSizes | None = None
) -> InProcessNode:
    run_dir.mkdir(exist_ok=True)
    return InProcessNode(
        decoder(),
        run_dir,
        placement,
        attention=host_attention(num_threads=2),
        grammars=grammars,
        sizes=sizes,
    )


def text_of(token_ids: list[int]) -> str:
    return checkpoint().tokenizer().tokenizer.decode([t for t in token_ids if t != END])


def generate(
    run_dir: Path, placement: str, grammars: Grammars, sizes: NodeSizes | None = None
) -> dict[str, list[int]]:
    """Return what a node makes of every kind of adjustment, with noise."""
    node = make_node(run_dir, placement, grammars, sizes)
    for request_id, (kind, adjustments) in enumerate(ADJUSTMENTS.items()):
        # A tiny model's distribution over all tokens is so flat that rounding may move a draw.
        sampling = SamplingParams(
            temperature=0.9, top_k=40, seed=request_id, adjustments=adjustments
        )
        prompt = PROMPTS[request_id % len(PROMPTS)].token_ids
        tokens = 60 if kind == "json" else 24
        node.submit(request_id, prompt, tokens, sampling, stop_token_ids=(END,))
    node.run()
    node.settle()
    node.close()
    return {kind: node.received[i].token_ids() for i, kind in enumerate(ADJUSTMENTS)}


@pytest.fixture(scope="module")
def on_device(tmp_path_factory: pytest.TempPathFactory, grammars: Grammars) -> dict[str, list[int]]:
    return generate(tmp_path_factory.mktemp("device"), "gpu", grammars)


@pytest.mark.parametrize("placement", ["cpu", "random:3", "random:4"])
def test_tokens_do_not_depend_on_where_a_request_lives(
    placement: str, on_device: dict[str, list[int]], grammars: Grammars, tmp_path: Path
) -> None:
    assert generate(tmp_path, placement, grammars) == on_device


def test_tokens_do_not_depend_on_preemption_and_eviction(
    on_device: dict[str, list[int]], grammars: Grammars, tmp_path: Path
) -> None:
    sizes = NodeSizes(device_blocks=12, host_blocks=12, max_running=4, token_budget=16, max_batch=2)
    assert generate(tmp_path, "auto", grammars, sizes) == on_device


def test_every_kind_of_adjustment_shows(on_device: dict[str, list[int]]) -> None:
    assert set(json.loads(text_of(on_device["json"]))) == {"name", "age"}
    assert re.fullmatch(DATE, text_of(on_device["regex"]))
    assert on_device["regex"][-1] == END
    assert set(on_device["allowed"]) <= {81, 82, 83, 84, 85}
    assert len(on_device["min_tokens"]) == 21
    assert on_device["min_tokens"][-1] == END
    assert 45 not in on_device["bias"]


@pytest.mark.parametrize("placement", ["gpu", "cpu"])
def test_what_cannot_be_done_is_refused_and_hurts_nobody(
    placement: str, grammars: Grammars, tmp_path: Path
) -> None:
    node = make_node(tmp_path, placement, grammars)
    bad = LogitAdjustments(grammar=LLMatcher.grammar_from_lark("start: /[/"))
    impossible = LogitAdjustments(grammar=JSON, allowed_token_ids=(81,))
    prompt = PROMPTS[0]
    for request_id, adjustments in enumerate((bad, impossible)):
        sampling = SamplingParams(temperature=0.0, adjustments=adjustments)
        node.submit(request_id, prompt.token_ids, 24, sampling)
    node.submit(2, prompt.token_ids, len(prompt.greedy_ids))
    node.run()
    for request_id in (0, 1):
        end = node.received[request_id].finish
        assert end is not None
        assert end.reason is FinishReason.REFUSED
        assert end.message
        assert not node.received[request_id].tokens
    assert node.received[2].token_ids() == list(prompt.greedy_ids)
    node.settle()
    node.close()


def test_a_request_whose_grammar_is_still_being_compiled_can_be_cancelled(tmp_path: Path) -> None:
    with closing(Grammars(vocabulary_of(checkpoint()))) as fresh:
        node = make_node(tmp_path, "gpu", fresh)
        sampling = SamplingParams(adjustments=LogitAdjustments(grammar=JSON))
        node.submit(0, PROMPTS[0].token_ids, 24, sampling)
        node.gpu_inbox.put(Cancel(0))
        node.gpu.step()
        end = node.received[0].finish
        assert end is not None
        assert end.reason is FinishReason.CANCELLED
        node.settle()
        node.close()


def test_the_host_learns_of_a_grammar_with_the_reservation(
    grammars: Grammars, tmp_path: Path
) -> None:
    """So that it is compiled by the time the request comes."""
    node = make_node(tmp_path, "cpu", grammars)
    sampling = SamplingParams(adjustments=LogitAdjustments(grammar=JSON))
    grammars.matcher(JSON)
    node.submit(0, PROMPTS[0].token_ids, 24, sampling)
    node.gpu.step()
    commands = node.cpu_inbox.drain()
    assert [c.grammar for c in commands if isinstance(c, Reserve)] == [JSON]
    node.close()


@pytest.mark.parametrize("placement", ["gpu", "cpu", "auto"])
def test_prompt_scores_are_those_of_the_model_and_come_once(
    placement: str, grammars: Grammars, tmp_path: Path
) -> None:
    """Prefilled in chunks, preempted or not: each position but the first, from a full softmax."""
    sizes = NodeSizes(device_blocks=24, host_blocks=12, max_running=4, token_budget=16)
    node = make_node(tmp_path, placement, grammars, sizes)
    for request_id, prompt in enumerate(PROMPTS):
        node.submit(request_id, prompt.token_ids, 12, prompt_logprobs=2)
    node.run()
    for request_id, prompt in enumerate(PROMPTS):
        received = node.received[request_id]
        assert sorted(received.prompt_logprobs) == list(range(1, len(prompt.token_ids)))
        logprobs = prompt_logprobs(prompt.token_ids)
        for position, found in received.prompt_logprobs.items():
            check_score(found, logprobs[position - 1], prompt.token_ids[position])
        assert Engine.GPU in received.engines.values()
    node.settle()
    node.close()


@cache
@torch.inference_mode()
def prompt_logprobs(token_ids: tuple[int, ...]) -> torch.Tensor:
    """Return log-probabilities [T, vocab] of what follows each token: one dense, causal pass."""
    model = decoder()
    positions = torch.arange(len(token_ids))
    hidden = model.embed(torch.tensor(token_ids))
    for layer in range(model.num_layers):
        q, k, v = model.pre_attention(layer, hidden, positions)
        attended = scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            is_causal=True,
            enable_gqa=True,
        )
        hidden = model.post_attention(layer, attended[0].transpose(0, 1), hidden)
    return model.head(hidden).log_softmax(dim=-1)


def check_score(found: TokenLogprobs, logprobs: torch.Tensor, token_id: int) -> None:
    value = logprobs[token_id].item()
    assert found.chosen == pytest.approx(value, abs=TOLERANCE)
    assert [logprob for _, logprob in found.top] == pytest.approx(
        logprobs.topk(2).values.tolist(), abs=TOLERANCE
    )
    assert found.rank is not None
    # Tokens within rounding of each other may stand in either order.
    surely_before = int((logprobs > value + TOLERANCE).sum())
    perhaps_before = int((logprobs > value - TOLERANCE).sum())
    assert surely_before < found.rank <= perhaps_before
