"""Engines that die at any moment, in any order, with any message lost: no request is.

Every token that a client gets is the right one, once and in order; nobody attends to KV that was
overwritten; no request has two owners; in the end every block and slot is free.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.core.request import Engine, FinishReason, Request, SamplingParams
from dualpace.testing.mortal_compute import MortalSizes
from dualpace.testing.mortal_node import GATEWAY_ID, MortalNode, mortal_node
from dualpace.testing.two_schedulers import token_for

PLACEMENTS = ["gpu", "cpu", "auto", "random:0", "random:1"]
ENGINE = st.sampled_from(Engine)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), ENGINE, st.integers(0, 39)),
        st.tuples(
            st.sampled_from(
                [
                    *("step", "to_engine", "to_gateway", "handoff", "round", "round", "slow"),
                    *("kill", "die", "amid", "between", "start", "join_gateway", "join_handoff"),
                    "cancel",
                ]
            ),
            ENGINE,
            st.integers(0, 9),
        ),
    ),
    max_size=80,
)


def make_request(request_id: int, draw: int) -> Request:
    """Some short, some of several blocks; some want log-probabilities, which no table keeps.

    Some end halfway, at a stop token.
    """
    prompt_tokens, max_tokens = 1 + draw * 7 % 40, 1 + draw * 5 % 24
    stop = token_for(request_id, prompt_tokens + max_tokens // 2)
    return Request(
        request_id=request_id,
        gateway_id=GATEWAY_ID,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        stop_token_ids=(stop,) if draw % 3 == 1 else (),
        arrival_s=float(request_id),
        sampling=SamplingParams(logprobs=0 if draw % 4 == 0 else None),
    )


def end_of(request: Request) -> tuple[FinishReason, int]:
    """Why it ends, and after how many tokens."""
    if request.stop_token_ids:
        return FinishReason.STOP, request.max_tokens // 2 + 1
    return FinishReason.LENGTH, request.max_tokens


def make_move(node: MortalNode, move: str, engine: Engine, number: int) -> None:
    if move == "submit":
        node.submit(make_request(len(node.requests) + 1, number))
    elif move == "kill":
        node.kill(engine, number)
    elif move == "die":
        if node.host_runner is not None:
            node.host_runner.dies_after = number % 3
    elif move == "amid":
        node.messages_amid_steps = number % 4
    elif move == "between":
        node.host_steps_amid_steps = number % 2 == 0
    elif move == "slow":
        assert node.device_runner is not None
        node.device_runner.copies_complete = number % 2 == 0
    elif move == "cancel":
        if number in node.generations:
            node.generations[number].cancel()
    elif move == "round":
        node.round()
    elif move == "join_handoff":
        node.join_handoff()
    else:
        {
            "step": node.step,
            "start": node.start,
            "to_engine": node.deliver_to_engine,
            "to_gateway": node.deliver_to_gateway,
            "handoff": node.deliver_handoff,
            "join_gateway": node.join_gateway,
        }[move](engine)


def settle_and_check(node: MortalNode) -> None:
    """Let everything end; every token is the right one, and only the cancelled lack some."""
    assert node.device_runner is not None
    node.device_runner.copies_complete = True
    node.settle()
    for request_id, request in node.requests.items():
        tokens, end = node.tokens_of(request_id)
        first = request.prompt_tokens
        assert tokens == [token_for(request_id, first + i) for i in range(len(tokens))]
        if end.reason is not FinishReason.CANCELLED:
            assert (end.reason, len(tokens)) == end_of(request)


@settings(max_examples=150, deadline=None)
@given(MOVES, st.sampled_from(PLACEMENTS), st.sampled_from([5, 8, 16]), st.sampled_from([5, 9]))
def test_no_request_is_lost_whatever_dies(
    moves: list[tuple[str, Engine, int]], placement: str, device_blocks: int, host_blocks: int
) -> None:
    sizes = MortalSizes(device_blocks=device_blocks, host_blocks=host_blocks)
    with mortal_node(placement, sizes) as node:
        for move in moves:
            make_move(node, *move)
            node.check_owners()
        settle_and_check(node)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("victims", [(Engine.GPU,), (Engine.CPU,), (Engine.GPU, Engine.CPU)])
def test_a_death_in_every_round_only_costs_time(placement: str, victims: tuple[Engine]) -> None:
    for dies_in in range(2, 30, 5):
        with mortal_node(placement, MortalSizes()) as node:
            for request_id in range(1, 6):
                node.submit(make_request(request_id, 7 * request_id))
            for _ in range(dies_in):
                node.round()
            for victim in victims:
                node.kill(victim, dies_in % 4)
            node.settle()
            for request_id, request in node.requests.items():
                tokens, end = node.tokens_of(request_id)
                assert (end.reason, len(tokens)) == end_of(request)


def test_a_copy_that_outlives_the_host_spoils_nothing() -> None:
    """The device copies to blocks that the dead host gave it; the next one must not use them."""
    with mortal_node("cpu", MortalSizes(host_blocks=6)) as node:
        node.submit(Request(request_id=1, gateway_id=GATEWAY_ID, prompt_tokens=12, max_tokens=40))
        for _ in range(6):
            node.round()
        assert node.device_runner is not None
        node.device_runner.copies_complete = False
        node.submit(
            Request(
                request_id=2, gateway_id=GATEWAY_ID, prompt_tokens=20, max_tokens=4, arrival_s=1.0
            )
        )
        for _ in range(4):
            node.round()
        node.kill(Engine.CPU, 0)
        node.deliver_to_gateway(Engine.CPU)
        node.start(Engine.CPU)
        node.join_gateway(Engine.CPU)
        for _ in range(30):  # it grows into another block, while the device knows nothing yet
            node.deliver_to_engine(Engine.CPU)
            node.step(Engine.CPU)
        node.device_runner.copies_complete = True
        node.step(Engine.GPU)
        node.settle()
        assert [len(node.tokens_of(request_id)[0]) for request_id in (1, 2)] == [40, 4]


@pytest.mark.parametrize("dies", [None, *Engine])
@pytest.mark.parametrize("cancelled", [False, True])
def test_copies_that_begin_amid_an_iteration_outlive_whatever_happens(
    dies: Engine | None, cancelled: bool
) -> None:
    """Engines die, and clients give up, while KV is on its way back to the device."""
    sizes = MortalSizes(device_blocks=16, host_blocks=16, max_running=4)
    with mortal_node("random:1", sizes) as node:
        node.messages_amid_steps, node.host_steps_amid_steps = 3, True
        for request_id in range(1, 6):
            request = Request(
                request_id=request_id,
                gateway_id=GATEWAY_ID,
                prompt_tokens=7 * request_id,
                max_tokens=40,
                arrival_s=float(request_id),
            )
            node.submit(request)
        runner = node.device_runner
        assert runner is not None
        for _ in range(100):
            begun = runner.copies_amid_steps
            node.round()
            if runner.copies_amid_steps > begun and not runner.copies_complete:
                break
            runner.copies_complete = not runner.copies_complete
        else:
            raise AssertionError("no copy began in the middle of an iteration")
        for generation in node.generations.values() if cancelled else ():
            generation.cancel()
        if dies is not None:
            node.kill(dies, 1)
        for _ in range(3):
            node.round()
            node.check_owners()
        settle_and_check(node)
