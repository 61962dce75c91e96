"""Engines of a served node that are killed under load: streams end as if nothing had happened."""

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx2
import pytest

from dualpace.testing.gold import tiny_model, tiny_prompts
from dualpace.testing.served_node import ServedNode, served_node, wait_for

MODEL = "llama3_rope"
PROMPTS = tiny_prompts(MODEL)
NUM_STREAMS = 32
MAX_TOKENS = 80
"""Longer than what gold knows, so that streams are under way when engines die."""


@dataclass
class Streamed:
    """What a client has seen."""

    token_ids: list[int] = field(default_factory=list)
    num_logprobs: int = 0
    finish_reason: str | None = None
    error: object = None
    usage: dict[str, int] | None = None


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    """Small enough that requests wait, are preempted, evicted and moved all the time."""
    with served_node(
        tiny_model(MODEL),
        *("--device-kv-mib=1", "--arena-mib=6", "--placement=random:1", "--max-restarts=100"),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(node: ServedNode) -> list[Streamed]:
    return Load(node).join()


class Load:
    """Streams that run at once: greedy and sampled, some with log-probabilities."""

    def __init__(self, node: ServedNode) -> None:
        self._node = node
        self.streams = [Streamed() for _ in range(NUM_STREAMS)]
        self._threads = [
            threading.Thread(target=self._read, args=(i,), daemon=True) for i in range(NUM_STREAMS)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> list[Streamed]:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), self._node.log
        return self.streams

    def wait_until_begun(self) -> None:
        wait_for(lambda: all(s.token_ids for s in self.streams), 60, lambda: self._node.log)

    def _read(self, index: int) -> None:
        stream = self.streams[index]
        body = {
            "prompt": list(PROMPTS[index % len(PROMPTS)].token_ids),
            "max_tokens": MAX_TOKENS,
            "temperature": 0.0 if index % 2 else 0.8,
            # Few candidates: among all, neighbours on the number line may be one rounding apart.
            "top_k": 4,
            "seed": index,
            "logprobs": 1 if index % 8 == 1 else None,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"{self._node.url}/v1/completions"
        with httpx2.stream("POST", url, json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    _take(stream, json.loads(line.removeprefix("data: ")))


def _take(stream: Streamed, chunk: dict[str, object]) -> None:
    stream.error = chunk.get("error") or stream.error
    stream.usage = chunk.get("usage") or stream.usage  # type: ignore[assignment]
    for choice in chunk.get("choices") or []:  # type: ignore[attr-defined]
        stream.token_ids += choice.get("token_ids") or []
        stream.finish_reason = choice.get("finish_reason") or stream.finish_reason
        stream.num_logprobs += len((choice.get("logprobs") or {}).get("tokens") or [])


def ready(node: ServedNode) -> bool:
    return httpx2.get(f"{node.url}/readyz", timeout=5).status_code == 200


def test_undisturbed_streams_are_gold(undisturbed: list[Streamed]) -> None:
    for index, stream in enumerate(undisturbed):
        assert (stream.error, stream.finish_reason) == (None, "length")
        assert len(stream.token_ids) == MAX_TOKENS
        assert stream.num_logprobs == (MAX_TOKENS if index % 8 == 1 else 0)
        gold = list(PROMPTS[index % len(PROMPTS)].greedy_ids)
        if index % 2:
            assert stream.token_ids[: len(gold)] == gold


@pytest.mark.parametrize(
    "victims", [("gpu-engine",), ("cpu-engine",), ("cpu-engine", "gpu-engine")]
)
def test_a_death_costs_time_alone(
    node: ServedNode, undisturbed: list[Streamed], victims: tuple[str, ...]
) -> None:
    wait_for(lambda: ready(node), 60, lambda: node.log)
    moments = random.Random(",".join(victims))
    load = Load(node)
    load.wait_until_begun()
    for victim in victims:
        time.sleep(moments.uniform(0.0, 0.3))
        node.services()[victim].kill()
    assert load.join() == undisturbed, node.log
    wait_for(lambda: ready(node), 60, lambda: node.log)
    node.assert_idle()
