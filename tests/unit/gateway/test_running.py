"""What a gateway does for its requests while engines come and go."""

from dataclasses import dataclass, field

import pytest

from dualpace.core.messages import (
    Ask,
    Cancel,
    FinishEvent,
    GatewayWord,
    Live,
    Ownership,
    Submit,
    TokenEvent,
)
from dualpace.core.request import Engine, FinishReason, Request
from dualpace.gateway.engines.generation import NodeGeneration
from dualpace.gateway.engines.running import RunningRequests
from dualpace.testing.clock import ManualClock

GATEWAY = 7
PROMPT = (11, 12, 13)
STOP = 99
GPU, CPU = Engine.GPU, Engine.CPU


@dataclass
class Port:
    """Records what an engine would be told."""

    connected: bool = True
    sent: list[GatewayWord] = field(default_factory=list)

    def send(self, message: GatewayWord) -> None:
        if self.connected:
            self.sent.append(message)

    def drain(self) -> list[GatewayWord]:
        sent, self.sent = self.sent, []
        return sent


class Gateway:
    """Engines of incarnations 100 and 200, and one request of which two tokens have come."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ports = {GPU: Port(), CPU: Port()}
        self.running = RunningRequests(GATEWAY, self.ports, self.clock, engine_wait_s=30.0)
        self.join(GPU, 100)
        self.join(CPU, 200)
        self.generation = self._begin()
        self.say(GPU, TokenEvent(GATEWAY, 1, 3, 33), TokenEvent(GATEWAY, 1, 4, 34))
        for port in self.ports.values():
            port.drain()

    def join(self, engine: Engine, incarnation: int) -> None:
        self.ports[engine].connected = True
        self.running.engine_joined(engine, incarnation)

    def leave(self, engine: Engine) -> None:
        self.ports[engine].connected = False
        self.running.engine_left(engine)

    def say(self, engine: Engine, *events: TokenEvent | FinishEvent | Ownership) -> None:
        self.running.take(engine, events)

    def question(self) -> Ask:
        [ask] = [word for word in self.ports[CPU].drain() if isinstance(word, Ask)]
        return ask

    def answer(self, *, owned: bool, serial: int) -> None:
        self.say(CPU, Ownership(GATEWAY, 1, owned, serial))

    def resubmissions(self) -> list[Submit]:
        return [word for word in self.ports[GPU].drain() if isinstance(word, Submit)]

    def _begin(self) -> NodeGeneration:
        request = Request(
            request_id=1,
            gateway_id=GATEWAY,
            prompt_tokens=3,
            max_tokens=6,
            stop_token_ids=(STOP,),
        )
        return self.running.begin(request, PROMPT)


def test_a_request_of_a_dead_gpu_engine_goes_on_where_it_was() -> None:
    gateway = Gateway()
    gateway.leave(GPU)
    ask = gateway.question()
    assert (ask.request_id, ask.next_position, ask.device) == (1, 5, 100)
    gateway.answer(owned=False, serial=ask.serial)
    gateway.join(GPU, 101)
    [again] = gateway.resubmissions()
    assert (again.prompt, again.generated) == (PROMPT, (33, 34))
    assert gateway.running.resubmitted == 1


def test_a_request_on_the_host_is_left_alone_when_the_gpu_engine_dies() -> None:
    gateway = Gateway()
    gateway.leave(GPU)
    gateway.answer(owned=True, serial=gateway.question().serial)
    gateway.join(GPU, 101)
    assert gateway.resubmissions() == []
    gateway.answer(owned=False, serial=0)  # evicted
    assert len(gateway.resubmissions()) == 1


def test_an_answer_to_an_older_question_counts_for_nothing() -> None:
    gateway = Gateway()
    gateway.leave(GPU)
    first = gateway.question()
    gateway.leave(CPU)
    gateway.join(CPU, 201)
    second = gateway.question()
    gateway.join(GPU, 101)
    gateway.answer(owned=False, serial=first.serial)
    assert gateway.resubmissions() == []
    gateway.answer(owned=False, serial=second.serial)
    assert len(gateway.resubmissions()) == 1


def test_a_dead_cpu_engine_is_no_matter_until_the_gpu_engine_says_so() -> None:
    gateway = Gateway()
    gateway.leave(CPU)
    gateway.join(CPU, 201)
    assert gateway.ports[CPU].drain() == [Live(GATEWAY, (1,))]
    gateway.say(GPU, Ownership(GATEWAY, 1, owned=False))
    assert gateway.question().device == 0


@pytest.mark.parametrize("last", [(STOP,), (35, 36, 37, 38)])
def test_a_request_whose_end_was_lost_ends(last: tuple[int, ...]) -> None:
    """Its last token came, the word that it was the last did not."""
    gateway = Gateway()
    gateway.say(GPU, *(TokenEvent(GATEWAY, 1, 5 + i, token) for i, token in enumerate(last)))
    gateway.leave(GPU)
    gateway.answer(owned=False, serial=gateway.question().serial)
    gateway.join(GPU, 101)
    assert gateway.resubmissions() == []
    assert gateway.generation.done
    assert len(gateway.running) == 0


@pytest.mark.parametrize("missing", [GPU, CPU])
def test_waiting_for_an_engine_has_an_end(missing: Engine) -> None:
    gateway = Gateway()
    gateway.leave(missing)
    gateway.clock.advance(29.0)
    gateway.running.end_overdue()
    assert len(gateway.running) == 1
    gateway.clock.advance(2.0)
    gateway.running.end_overdue()
    assert gateway.generation.done
    assert len(gateway.running) == 0


def test_whoever_gets_tokens_waits_for_nobody() -> None:
    gateway = Gateway()
    gateway.leave(CPU)
    gateway.clock.advance(29.0)
    gateway.say(GPU, TokenEvent(GATEWAY, 1, 5, 35))
    gateway.clock.advance(29.0)
    gateway.running.end_overdue()
    assert not gateway.generation.done


def test_a_wait_that_is_over_counts_no_more() -> None:
    gateway = Gateway()
    gateway.leave(CPU)
    gateway.join(CPU, 201)
    gateway.running.end_overdue()
    gateway.clock.advance(100.0)
    gateway.running.end_overdue()
    assert not gateway.generation.done


def test_a_session_that_breaks_without_a_death_ends_its_requests() -> None:
    gateway = Gateway()
    gateway.leave(GPU)
    gateway.join(GPU, 100)
    assert gateway.generation.done
    assert gateway.resubmissions() == []


def test_tokens_that_nobody_wants_are_stopped_once() -> None:
    gateway = Gateway()
    gateway.leave(CPU)
    gateway.generation.cancel()
    gateway.join(CPU, 201)
    assert gateway.ports[CPU].drain() == [Live(GATEWAY, ())]
    for position in (5, 6):
        gateway.say(CPU, TokenEvent(GATEWAY, 1, position, 3))
    assert gateway.ports[CPU].drain() == [Cancel(1)]


def test_a_request_that_was_submitted_twice_is_stopped_when_it_ends() -> None:
    gateway = Gateway()
    gateway.leave(GPU)
    gateway.answer(owned=False, serial=gateway.question().serial)
    gateway.join(GPU, 101)
    gateway.say(CPU, FinishEvent(GATEWAY, 1, 5, FinishReason.STOP))  # late, from before
    assert gateway.generation.done
    assert gateway.ports[GPU].drain()[-1] == Cancel(1)
