"""A node whose GPU is emulated: everything but compute is real, and requests come through whole."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from dualpace.testing.gold import tiny_model
from dualpace.testing.served_node import served_node, wait_for

LOCKSTEP = {"DUALPACE_GPU_ENGINE_LOCKSTEP": "true", "DUALPACE_CPU_ENGINE_LOCKSTEP": "true"}


@pytest.mark.parametrize(
    ("flags", "env"),
    [(("--assist=alternate",), {}), ((), LOCKSTEP)],
    ids=["assist", "lockstep"],
)
def test_requests_come_through_whole(flags: tuple[str, ...], env: Mapping[str, str]) -> None:
    with served_node(
        tiny_model("llama3_rope"),
        "--device=emulated:rtx-4090",
        "--placement=random:3",
        "--device-kv-mib=1",
        "--arena-mib=16",
        *flags,
        env=env,
    ) as node:

        def complete(index: int) -> list[int]:
            body = {
                "prompt": [5 + index, 6, 7],
                "max_tokens": 40,
                "ignore_eos": True,
                "temperature": 0,
                "return_token_ids": True,
            }
            answer = httpx2.post(f"{node.url}/v1/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            token_ids: list[int] = answer.json()["choices"][0]["token_ids"]
            return token_ids

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(complete, range(12)))
        assert [len(answer) for answer in answers] == [40] * 12
        moved = {("gpu", "handoffs_total"), ("cpu", "tokens_total")}
        if flags:
            moved.add(("cpu", "assist_iterations_total"))
        # Engines report four times a second; the requests may take less.
        wait_for(lambda: all(node.gauges()[name] > 0 for name in moved), 10, lambda: node.log)
        node.assert_idle()


def test_an_unknown_gpu_is_named() -> None:
    with (
        pytest.raises(AssertionError, match="'rtx-1' is neither the file of a profile nor one of"),
        served_node(tiny_model("llama3_rope"), "--device=emulated:rtx-1"),
    ):
        pass
