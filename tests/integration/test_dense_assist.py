"""Lent dense stages change no token, whether they are answered, late, wrong or never finished."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dualpace.core.request import LogitAdjustments, SamplingParams
from dualpace.models.host_attention import host_attention
from dualpace.scheduling.route import Route
from dualpace.testing.gold import GoldPrompt, tiny_model_names
from dualpace.testing.gold_nodes import DEMO, check_gold, decoder_of, prompts_of
from dualpace.testing.in_process import InProcessNode, NodeSizes

ALWAYS = (Route.ASSIST,)
ALTERNATE = (Route.ASSIST, Route.HOST)
SIZES = NodeSizes(device_blocks=128, host_blocks=128, token_budget=48)


def make_node(
    model: str, run_dir: Path, routes: tuple[Route, ...], placement: str = "cpu"
) -> InProcessNode:
    return InProcessNode(
        decoder_of(model),
        run_dir,
        placement,
        attention=host_attention(num_threads=2),
        sizes=SIZES,
        routes=routes,
    )


def submit(node: InProcessNode, prompts: tuple[GoldPrompt, ...]) -> None:
    greedy = SamplingParams(temperature=0.0, logprobs=5)
    for request_id, prompt in enumerate(prompts):
        node.submit(request_id, prompt.token_ids, len(prompt.greedy_ids), greedy)


def check_and_close(node: InProcessNode, prompts: tuple[GoldPrompt, ...]) -> None:
    for request_id, prompt in enumerate(prompts):
        check_gold(node, request_id, prompt)
    node.settle()
    node.close()


@pytest.mark.parametrize(
    ("model", "routes"),
    [*((name, ALWAYS) for name in tiny_model_names()), ("qwen3", ALTERNATE), (DEMO, ALTERNATE)],
)
def test_tokens_and_logprobs_equal_gold(
    model: str, routes: tuple[Route, ...], tmp_path: Path
) -> None:
    node = make_node(model, tmp_path, routes)
    submit(node, prompts_of(model))
    node.run()
    assert node.assisted.iterations > 10
    assert node.assisted.misses == 0
    check_and_close(node, prompts_of(model))


def fail_calls(
    monkeypatch: pytest.MonkeyPatch, node: InProcessNode, due: Callable[[], bool]
) -> None:
    """Let the device run out of memory, say, in those of the calls at which `due` holds."""
    lend = node.device.lend

    def failing(
        work: Callable[[], torch.Tensor | None],
        finish: Callable[[torch.Tensor | None, Exception | None], None],
    ) -> None:
        if due():
            finish(None, RuntimeError("out of memory"))
        else:
            lend(work, finish)

    monkeypatch.setattr(node.device, "lend", failing)


@pytest.mark.parametrize("fault", ["stalled", "failing"])
@pytest.mark.parametrize("boundary", range(4))
def test_a_device_that_leaves_an_iteration_unfinished_costs_no_token(
    fault: str, boundary: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back each time, and the next iterations are lent again."""
    model = "llama3_rope"
    node = make_node(model, tmp_path, ALWAYS)
    calls = itertools.count()
    per_iteration = decoder_of(model).num_layers + 1

    def due() -> bool:
        return next(calls) % (3 * per_iteration) == boundary

    if fault == "stalled":
        node.lend(until=due)
    else:
        fail_calls(monkeypatch, node, due)
    submit(node, prompts_of(model))
    for _ in range(2000):
        node.gpu.step()  # answers late whatever it owes
        node.cpu.step()
        node.clock.advance(1.0)
        if all(r.finish is not None for r in node.received.values()):
            break
    assert node.assisted.misses > 0
    assert node.assisted.iterations > 0
    check_and_close(node, prompts_of(model))


def test_a_device_that_never_answers_again_is_not_asked_again(tmp_path: Path) -> None:
    node = make_node("llama3_rope", tmp_path, ALWAYS)
    submit(node, prompts_of("llama3_rope"))
    everyone = len(node.received)
    node.run(until=lambda: node.host_scheduler.num_running == everyone)
    assert node.assisted.iterations > 0
    node.lend(until=lambda: True)
    for _ in range(200):  # the device itself does not step any more
        node.cpu.step()
        node.clock.advance(100.0)
    assert node.assisted.misses == 1
    check_and_close(node, prompts_of("llama3_rope"))


def test_sampling_is_the_same_on_either_side(tmp_path: Path) -> None:
    """Seeds, penalties and biases, and requests that move and flap all the while."""
    outputs = []
    for run, (routes, placement) in enumerate(
        [((Route.HOST,), "cpu"), (ALWAYS, "cpu"), (ALTERNATE, "cpu"), (ALTERNATE, "random:4")]
    ):
        directory = tmp_path / str(run)
        directory.mkdir()
        node = make_node("phi3", directory, routes, placement)
        for request_id, prompt in enumerate(prompts_of("phi3")):
            adjustments = LogitAdjustments(
                presence_penalty=0.7, repetition_penalty=1.3, logit_bias=((5, 1.5),), min_tokens=9
            )
            sampling = SamplingParams(
                temperature=0.8,
                top_p=0.95,
                seed=request_id,
                adjustments=adjustments if request_id % 2 else None,
            )
            node.submit(request_id, prompt.token_ids, 24, sampling)
        node.run()
        outputs.append({k: r.token_ids() for k, r in node.received.items()})
        node.settle()
        node.close()
    assert all(output == outputs[0] for output in outputs[1:])


def test_a_batch_that_no_channel_holds_is_computed_on_the_host(tmp_path: Path) -> None:
    node = make_node("llama3_rope", tmp_path, ALWAYS)
    submit(node, prompts_of("llama3_rope"))
    node.run(until=lambda: node.host_scheduler.num_running == len(prompts_of("llama3_rope")))
    plan = node.host_scheduler.schedule(0.0)
    rows = len(plan.rows)
    wide = type(plan)(plan.rows, (), (rows + SIZES.max_batch,), Route.ASSIST)
    many = type(plan)(plan.rows, (), (1, 1, rows - 2), Route.ASSIST)
    assert node.assisted.run(wide) is None
    assert node.assisted.run(many) is None
    node.close()
