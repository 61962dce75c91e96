"""Neither engine waits for the other: exact statements, on engines that step when the test says."""

from functools import cache
from pathlib import Path

import pytest
import torch

from dualpace.checkpoint import open_checkpoint
from dualpace.core.messages import Cancel
from dualpace.core.request import Engine, FinishReason
from dualpace.ipc.channel import DeviceLeft, GatewayLeft, HostLeft
from dualpace.models.decoder import Decoder
from dualpace.models.loader import load_decoder
from dualpace.models.torch_attention import TorchPagedAttention
from dualpace.testing.gold import tiny_model, tiny_prompts
from dualpace.testing.in_process import GATEWAY_ID, InProcessNode, NodeSizes

PROMPTS = tiny_prompts("llama3_rope")


@cache
def make_decoder() -> Decoder:
    checkpoint = open_checkpoint(tiny_model("llama3_rope"))
    return load_decoder(checkpoint, dtype=torch.float32, device=torch.device("cpu"))


def make_node(run_dir: Path, placement: str, sizes: NodeSizes | None = None) -> InProcessNode:
    return InProcessNode(
        make_decoder(), run_dir, placement, attention=TorchPagedAttention(), sizes=sizes
    )


def submit_all(node: InProcessNode, max_tokens: int = 24) -> None:
    for request_id, prompt in enumerate(PROMPTS):
        node.submit(request_id, prompt.token_ids, max_tokens)


def test_the_host_makes_a_token_of_each_request_in_each_of_its_steps(tmp_path: Path) -> None:
    """The device does not step at all meanwhile."""
    node = make_node(tmp_path, "cpu")
    submit_all(node)
    node.run(until=lambda: node.host_scheduler.num_running == len(PROMPTS))
    for _ in range(10):
        before = {k: len(r.tokens) for k, r in node.received.items()}
        node.cpu.step()
        assert {k: len(r.tokens) for k, r in node.received.items()} == {
            k: n + 1 for k, n in before.items()
        }
    node.run()
    node.settle()
    node.close()


@pytest.mark.parametrize("placement", ["gpu", "auto"])
def test_the_device_finishes_its_requests_while_the_host_is_stopped(
    placement: str, tmp_path: Path
) -> None:
    node = make_node(tmp_path, placement)
    submit_all(node)
    for _ in range(200):
        node.gpu.step()
    for request_id, prompt in enumerate(PROMPTS):
        assert node.received[request_id].token_ids() == list(prompt.greedy_ids)
    node.settle()
    node.close()


def test_movers_go_on_decoding_while_the_host_does_not_answer(tmp_path: Path) -> None:
    """Requests that wish to move are not held up by a host that is silent."""
    node = make_node(tmp_path, "random:5")
    submit_all(node)
    for _ in range(200):
        node.gpu.step()  # reservations are asked for, and never answered
    done = [k for k, r in node.received.items() if r.finish is not None]
    waiting = set(node.received) - set(done)
    assert done
    # Only those whose very first decode is to be on the host wait for it, holding no blocks.
    assert len(node.gpu_scheduler.state.waiting) == len(waiting)
    assert node.gpu_scheduler.state.free_device_blocks == 64
    node.run()
    for request_id, prompt in enumerate(PROMPTS):
        assert node.received[request_id].token_ids() == list(prompt.greedy_ids)
    node.settle()
    node.close()


@pytest.mark.parametrize("placement", ["gpu", "cpu", "random:7"])
@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 8])
def test_cancellation_in_any_state_frees_everything(
    placement: str, rounds: int, tmp_path: Path
) -> None:
    node = make_node(tmp_path, placement, NodeSizes(token_budget=16))
    submit_all(node)
    for _ in range(rounds):
        node.gpu.step()
        node.cpu.step()
    for request_id in node.received:
        # As a gateway does: to both, as only they know who owns it.
        node.gpu_inbox.put(Cancel(request_id))
        node.cpu_inbox.put(Cancel(request_id))
    node.run()
    assert {r.finish.reason for r in node.received.values() if r.finish} == {FinishReason.CANCELLED}
    node.settle()
    node.close()


def test_a_gateway_that_leaves_takes_its_requests_along(tmp_path: Path) -> None:
    node = make_node(tmp_path, "random:7")
    submit_all(node)
    for _ in range(6):
        node.gpu.step()
        node.cpu.step()
    node.gpu_inbox.put(GatewayLeft(GATEWAY_ID))
    node.cpu_inbox.put(GatewayLeft(GATEWAY_ID))
    node.run()
    node.settle()
    node.close()


def test_a_lost_host_takes_along_only_what_lives_there(tmp_path: Path) -> None:
    """The gpu-engine says that these are not its own any more, and goes on with the others."""
    node = make_node(tmp_path, "random:9")
    submit_all(node)
    node.run(until=lambda: node.host_scheduler.num_running > 0)
    on_host = {s.request_id for s in node.gpu_scheduler.state.away}
    node.gpu_inbox.put(HostLeft())
    for _ in range(200):
        node.gpu.step()
    for request_id, received in node.received.items():
        assert received.disowned_by == ({Engine.GPU} if request_id in on_host else set())
        if request_id not in on_host:
            assert received.token_ids() == list(PROMPTS[request_id].greedy_ids)
    node.gpu_scheduler.state.check_integrity()
    assert node.gpu_scheduler.state.free_device_blocks == 64
    node.close()


def test_requests_on_the_host_outlive_the_device(tmp_path: Path) -> None:
    node = make_node(tmp_path, "cpu")
    submit_all(node)
    node.run(until=lambda: node.host_scheduler.num_running == len(PROMPTS))
    node.cpu_inbox.put(DeviceLeft())
    for _ in range(60):
        node.cpu.step()
    for request_id, prompt in enumerate(PROMPTS):
        assert node.received[request_id].token_ids() == list(prompt.greedy_ids)
        assert node.received[request_id].engines[len(prompt.token_ids) + 1] is Engine.CPU
    node.host_scheduler.check_integrity()
    assert node.host_scheduler.free_blocks == 64
    node.close()


def test_the_sequence_table_tells_how_far_every_request_is(tmp_path: Path) -> None:
    """What a restarted cpu-engine would find: request, length, blocks, and every token id."""
    node = make_node(tmp_path, "cpu")
    submit_all(node)
    node.run(until=lambda: all(len(r.tokens) >= 5 for r in node.received.values()))
    slots = node.arena.sequences.owned_slots()
    assert len(slots) == len(PROMPTS)
    for slot in slots:
        request, num_tokens, return_at = node.arena.sequences.read(slot)
        prompt = PROMPTS[request.request_id]
        known = [*prompt.token_ids, *node.received[request.request_id].token_ids()]
        assert num_tokens == len(known)
        assert [node.arena.token_at(slot, p) for p in range(num_tokens)] == known
        assert return_at is None
    node.run()
    node.settle()
    node.close()
