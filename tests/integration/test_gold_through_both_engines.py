"""Greedy tokens equal the reference's wherever a request lives and however it moves.

Both engines run for real in one process, over a real arena; only sockets and time are replaced.
"""

from pathlib import Path

import pytest

from dualpace.core.request import Engine, SamplingParams
from dualpace.models.host_attention import host_attention
from dualpace.testing.gold import tiny_model_names
from dualpace.testing.gold_nodes import DEMO, check_gold, decoder_of, prompts_of
from dualpace.testing.in_process import InProcessNode, NodeSizes

PLACEMENTS = ["gpu", "cpu", "auto", "random:1", "random:2"]


def make_node(model: str, placement: str, run_dir: Path, sizes: NodeSizes) -> InProcessNode:
    attention = host_attention(num_threads=2)
    return InProcessNode(decoder_of(model), run_dir, placement, attention=attention, sizes=sizes)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("model", [*tiny_model_names(), DEMO])
def test_tokens_and_logprobs_equal_gold(model: str, placement: str, tmp_path: Path) -> None:
    sizes = NodeSizes(device_blocks=128, host_blocks=128, token_budget=48)
    node = make_node(model, placement, tmp_path, sizes)
    prompts = prompts_of(model)
    greedy = SamplingParams(temperature=0.0, logprobs=5)
    for request_id, prompt in enumerate(prompts):
        node.submit(request_id, prompt.token_ids, len(prompt.greedy_ids), greedy)
    node.run()
    for request_id, prompt in enumerate(prompts):
        check_gold(node, request_id, prompt)
    decodes = {
        engine
        for request_id, r in node.received.items()
        for position, engine in r.engines.items()
        if position > len(prompts[request_id].token_ids)
    }
    expected = {"gpu": {Engine.GPU}, "cpu": {Engine.CPU}}
    if placement == "auto":  # the host takes what the device has no room for
        assert Engine.GPU in decodes
    else:
        assert decodes == expected.get(placement, {Engine.GPU, Engine.CPU})
    node.settle()
    node.close()


@pytest.mark.parametrize("model", ["qwen3", "mistral", "gemma3"])
def test_tokens_equal_gold_when_memory_is_short(model: str, tmp_path: Path) -> None:
    """Little room on both sides: preemption, eviction and recall all happen on the way."""
    sizes = NodeSizes(device_blocks=12, host_blocks=12, max_running=4, token_budget=16, max_batch=2)
    node = make_node(model, "auto", tmp_path, sizes)
    prompts = prompts_of(model) * 3
    for request_id, prompt in enumerate(prompts):
        node.submit(request_id, prompt.token_ids, len(prompt.greedy_ids))
    node.run()
    for request_id, prompt in enumerate(prompts):
        assert prompt.first_wrong_step(node.received[request_id].token_ids()) is None
    decoded_by = {engine for r in node.received.values() for engine in r.engines.values()}
    assert decoded_by == {Engine.GPU, Engine.CPU}
    moves = node.gpu.gauges()
    assert moves["handoffs_total"] > 0
    node.settle()
    node.close()


@pytest.mark.parametrize("model", ["llama3_rope", "phi3"])
def test_seeded_sampling_does_not_depend_on_where_a_request_lives(
    model: str, tmp_path: Path
) -> None:
    """Noise is a function of seed and position; KV that moved is the same KV."""
    outputs = []
    for run, placement in enumerate(["gpu", "cpu", "random:3", "random:4"]):
        directory = tmp_path / str(run)
        directory.mkdir()
        node = make_node(model, placement, directory, NodeSizes())
        for request_id, prompt in enumerate(prompts_of(model)):
            sampling = SamplingParams(temperature=0.8, top_p=0.95, top_k=40, seed=request_id)
            node.submit(request_id, prompt.token_ids, 24, sampling)
        node.run()
        outputs.append({k: r.token_ids() for k, r in node.received.items()})
        node.settle()
        node.close()
    assert all(output == outputs[0] for output in outputs[1:])
