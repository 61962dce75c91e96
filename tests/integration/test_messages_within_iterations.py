"""Messages that reach an engine in the middle of an iteration are answered there.

One engine steps between any two layers of the other, so everything that can happen to a request
happens to one that is being computed. Tokens stay those of the reference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from dualpace.checkpoint import open_checkpoint
from dualpace.core.messages import (
    Cancel,
    HostStatus,
    Recall,
    Reserve,
    Reserved,
    Returned,
)
from dualpace.core.request import Engine, FinishReason
from dualpace.ipc.channel import CpuInput, DeviceLeft, GatewayLeft
from dualpace.models.decoder import Decoder
from dualpace.models.host_attention import host_attention
from dualpace.models.host_linear import host_linear
from dualpace.models.loader import load_decoder
from dualpace.scheduling.placement import GpuOnly
from dualpace.scheduling.route import Route
from dualpace.testing.gold import GoldPrompt, tiny_model, tiny_prompts
from dualpace.testing.in_process import GATEWAY_ID, InProcessNode, NodeSizes


@dataclass(frozen=True)
class Way:
    """How the host computes."""

    model: str
    native: bool
    routes: tuple[Route, ...] = (Route.HOST,)


WAYS = {
    "whole steps": Way("llama3_rope", native=True),
    "stage by stage": Way("llama3_rope", native=False),
    "mixture of experts": Way("qwen3_moe", native=True),
    "assisted": Way("llama3_rope", native=False, routes=(Route.ASSIST,)),
    "assisted in turn": Way("llama3_rope", native=True, routes=(Route.ASSIST, Route.HOST)),
}
SMALL = NodeSizes(device_blocks=12, host_blocks=12, max_running=4, token_budget=16, max_batch=2)


@cache
def decoder_of(model: str, native: bool) -> Decoder:
    checkpoint, cpu = open_checkpoint(tiny_model(model)), torch.device("cpu")
    if not native:
        return load_decoder(checkpoint, dtype=torch.float32, device=cpu)
    linear = host_linear(2, weights="float32")
    return load_decoder(checkpoint, dtype=torch.float32, device=cpu, linear=linear)


class Interrupted:
    """A node in which something happens at every boundary between two layers of the host."""

    def __init__(
        self,
        way: Way,
        run_dir: Path,
        monkeypatch: pytest.MonkeyPatch,
        placement: str = "cpu",
        sizes: NodeSizes | None = None,
    ) -> None:
        self.node = InProcessNode(
            decoder_of(way.model, way.native),
            run_dir,
            placement,
            attention=host_attention(num_threads=2),
            sizes=sizes,
            routes=way.routes,
        )
        self.happens: Callable[[], None] = lambda: None
        self.boundaries = 0
        self._model = way.model
        self._computing = False
        drain = self.node.cpu_inbox.drain
        execute = self.node.cpu._runner.execute

        def interrupting_drain() -> list[CpuInput]:
            if self._computing:
                self.boundaries += 1
                self.happens()
            items = drain()
            self.node.cpu_inbox.flag[0] = 1
            return items

        def watched_execute(*arguments: object) -> object:
            self._computing = True
            try:
                return execute(*arguments)  # type: ignore[arg-type]
            finally:
                self._computing = False

        monkeypatch.setattr(self.node.cpu_inbox, "drain", interrupting_drain)
        monkeypatch.setattr(self.node.cpu._runner, "execute", watched_execute)

    def begin_two(self) -> None:
        """Have the host decode requests 0 and 1, of 24 tokens each."""
        for request_id, prompt in enumerate(tiny_prompts(self._model)[:2]):
            self.node.submit(request_id, prompt.token_ids, 24)
        self.node.run(until=lambda: self.node.host_scheduler.num_running == 2)

    def run(self) -> None:
        """Run to the end; nothing is held then."""
        self.node.run()
        self.happens = lambda: None
        self.node.settle()
        self.node.close()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    if WAYS[request.param].native:
        pytest.importorskip("dualpace.kernels", reason="the native kernels are not built")
    return WAYS[request.param]


def assert_gold(node: InProcessNode, prompts: Sequence[GoldPrompt]) -> None:
    """Assert that requests 0, 1, ... got the reference's tokens."""
    for request_id, prompt in enumerate(prompts):
        assert prompt.first_wrong_step(node.received[request_id].token_ids()) is None


def two_on_the_host(run_dir: Path) -> tuple[InProcessNode, Sequence[GoldPrompt]]:
    """Run a node until the first two of its prompts have moved to the host."""
    node = InProcessNode(
        decoder_of("llama3_rope", native=False),
        run_dir,
        "cpu",
        attention=host_attention(num_threads=2),
    )
    prompts = tiny_prompts("llama3_rope")
    for request_id, prompt in enumerate(prompts[:2]):
        node.submit(request_id, prompt.token_ids, len(prompt.greedy_ids))
    node.run(until=lambda: node.host_scheduler.num_running == 2)
    return node, prompts


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("whole steps", "cpu"),
        ("whole steps", "random:2"),
        ("whole steps", "auto"),
        ("stage by stage", "random:2"),
        ("assisted", "random:2"),
        ("assisted in turn", "auto"),
    ],
)
def test_tokens_equal_gold_while_the_device_steps_between_layers(
    name: str, placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = WAYS[name]
    sizes = SMALL if placement == "auto" else None
    it = Interrupted(way, tmp_path, monkeypatch, placement, sizes)

    def step_device() -> None:
        it.node.gpu.step()
        it.node.host_scheduler.check_integrity()

    it.happens = step_device
    prompts = tiny_prompts(way.model) * (2 if placement == "auto" else 1)
    for request_id, prompt in enumerate(prompts):
        it.node.submit(request_id, prompt.token_ids, len(prompt.greedy_ids))
    it.run()
    assert it.boundaries > 0
    assert_gold(it.node, prompts)


def test_a_reservation_is_answered_before_the_iteration_ends(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Interrupted(way, tmp_path, monkeypatch)
    prompt = tiny_prompts(way.model)[0]
    it.node.submit(0, prompt.token_ids, 8)
    it.node.run(until=lambda: it.node.host_scheduler.num_running == 1)
    answered: list[int] = []

    def ask() -> None:
        if it.boundaries == first + 1:
            it.node.cpu_inbox.put(Reserve(77, 16))
        elif not answered:
            events = it.node.gpu_inbox.drain()
            answered.extend(e.request_id for e in events if isinstance(e, Reserved))

    first, it.happens = it.boundaries, ask
    before = len(it.node.received[0].tokens)
    it.node.cpu.step()
    assert answered == [77]
    assert len(it.node.received[0].tokens) == before + 1
    it.node.host_scheduler.release(77)
    it.run()


def test_what_was_asked_before_an_iteration_is_answered_before_its_end(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Interrupted(way, tmp_path, monkeypatch)
    it.begin_two()
    answered: list[object] = []

    def look() -> None:
        it.happens = lambda: None
        answered.extend(it.node.gpu_inbox._items)

    it.node.cpu_inbox.put(Recall(0))
    it.node.cpu_inbox.put(Reserve(77, 16))
    it.happens = look
    it.node.cpu.step()
    assert {type(answer) for answer in answered} == {Returned, Reserved, HostStatus}
    it.happens = lambda: None
    it.node.host_scheduler.release(77)
    it.run()


def test_who_comes_soon_after_an_iteration_has_begun_gets_its_token_from_it(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is one native call, not lent; else from the next. Tokens equal gold."""
    it = Interrupted(way, tmp_path, monkeypatch)
    prompts = tiny_prompts(way.model)
    it.node.submit(0, prompts[0].token_ids, len(prompts[0].greedy_ids))
    it.node.run(until=lambda: it.node.host_scheduler.num_running == 1)

    def come() -> None:
        it.happens = lambda: None
        for request_id, prompt in enumerate(prompts[1:], 1):
            it.node.submit(request_id, prompt.token_ids, len(prompt.greedy_ids))
        for _ in range(4):
            it.node.gpu.step()
            it.node.cpu._answer(None)

    it.happens = come
    it.node.cpu.step()
    assert it.node.host_scheduler.num_running == len(prompts)
    got = [len(it.node.received[i].tokens) for i in range(1, len(prompts))]
    joined = it.node.cpu.gauges()["joined_total"]
    assert joined in ({len(got)} if way == WAYS["whole steps"] else {0, len(got)})
    assert not joined or way.native
    assert got == [2 if joined else 1] * len(got), "the device's token, and the host's"
    it.run()
    assert_gold(it.node, prompts)


@pytest.mark.parametrize("leaving", [False, True], ids=["cancel", "gateway"])
def test_what_is_being_computed_is_cancelled_when_its_iteration_ends(
    leaving: bool, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Interrupted(way, tmp_path, monkeypatch)
    it.begin_two()

    def cancel() -> None:
        it.happens = lambda: None
        it.node.cpu_inbox.put(GatewayLeft(GATEWAY_ID) if leaving else Cancel(0))

    it.happens = cancel
    it.node.cpu.step()
    ended = {k for k, r in it.node.received.items() if r.finish is not None}
    assert ended == ({0, 1} if leaving else {0})
    finish = it.node.received[0].finish
    assert finish is not None
    assert finish.reason is FinishReason.CANCELLED
    # The token that was under way counts: positions stay in order.
    assert finish.end_position == max(it.node.received[0].tokens) + 1
    it.run()


def test_a_device_that_leaves_within_an_iteration_takes_nothing_along(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what it had called back a moment before."""
    it = Interrupted(way, tmp_path, monkeypatch)
    prompts = tiny_prompts(way.model)
    for request_id, prompt in enumerate(prompts):
        it.node.submit(request_id, prompt.token_ids, len(prompt.greedy_ids))
    it.node.run(until=lambda: it.node.host_scheduler.num_running == len(prompts))

    def leave() -> None:
        it.happens = lambda: None
        it.node.host_scheduler.recall(0)
        it.node.cpu_inbox.put(DeviceLeft())

    it.happens = leave
    for _ in range(80):
        it.node.cpu.step()
    assert_gold(it.node, prompts)
    assert it.node.host_scheduler.free_blocks == it.node.host_scheduler.limits.num_blocks
    it.node.close()


@pytest.mark.parametrize("placement", ["random:2", "auto"])
def test_tokens_equal_gold_while_the_host_steps_between_the_device_s_stages(
    placement: str, tmp_path: Path
) -> None:
    sizes = SMALL if placement == "auto" else None
    node = InProcessNode(
        decoder_of("llama3_rope", native=False),
        tmp_path,
        placement,
        attention=host_attention(num_threads=2),
        sizes=sizes,
    )

    def step_host() -> None:
        node.cpu.step()
        node.gpu_scheduler.state.check_integrity()

    node.between_device_stages = step_host
    prompts = tiny_prompts("llama3_rope") * (2 if placement == "auto" else 1)
    for request_id, prompt in enumerate(prompts):
        node.submit(request_id, prompt.token_ids, len(prompt.greedy_ids))
    node.run()
    assert_gold(node, prompts)
    assert node.gpu.gauges()["handoffs_total"] > 0
    node.settle()
    node.close()


def test_what_comes_back_to_a_device_without_room_is_given_back_within_its_iteration(
    tmp_path: Path,
) -> None:
    node, prompts = two_on_the_host(tmp_path)
    node.submit(2, prompts[2].token_ids, 4)
    stages: list[int] = []

    def come_back() -> None:
        stages.append(node.host_scheduler.num_running)
        if len(stages) == 1:
            node.host_scheduler.recall(0)
            node.cpu._publish()
        else:
            node.cpu.step()

    node.between_device_stages = come_back
    while not stages:
        node.gpu.step()
        node.cpu.step()
    assert stages[:3] == [2, 1, 2]
    node.between_device_stages = lambda: None
    node.run()
    assert_gold(node, prompts[:2])
    node.settle()
    node.close()


def test_what_comes_back_within_an_iteration_is_in_the_next_one(tmp_path: Path) -> None:
    node, prompts = two_on_the_host(tmp_path)
    node.gpu_scheduler._placement = GpuOnly()
    node.submit(2, prompts[2].token_ids, len(prompts[2].greedy_ids))
    boundaries: list[int] = []

    def come_back() -> None:
        boundaries.append(len(node.received[0].tokens))
        if len(boundaries) == 2:
            node.host_scheduler.recall(0)
            node.cpu._publish()

    node.between_device_stages = come_back
    node.gpu.step()
    assert len(boundaries) > 2
    before = set(node.received[0].tokens)
    assert len(before) == boundaries[-1]
    node.gpu.step()
    (new,) = set(node.received[0].tokens) - before
    assert node.received[0].engines[new] is Engine.GPU
    assert node.gpu.gauges()["returns_total"] == 1
    node.run()
    assert_gold(node, prompts[:3])
    node.settle()
    node.close()
