"""Services that a kubelet starts again: whichever is killed, the pod serves again by itself."""

from collections.abc import Iterator

import httpx2
import pytest

from dualpace.testing.gold import tiny_model
from dualpace.testing.pod import Pod, running_pod
from dualpace.testing.served_node import wait_for


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    with running_pod(
        tiny_model("llama3_rope"), "--device-kv-mib=1", "--arena-mib=6", "--placement=random:1"
    ) as running:
        running.wait_until_ready()
        yield running


@pytest.mark.parametrize("victim", ["gpu-engine", "cpu-engine", "gateway"])
def test_a_killed_service_is_joined_again(pod: Pod, victim: str) -> None:
    def complete() -> list[int]:
        body = {"prompt": [5, 6, 7], "max_tokens": 24, "temperature": 0, "return_token_ids": True}
        answer = httpx2.post(f"{pod.url}/v1/completions", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        token_ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return token_ids

    before = complete()
    starts = pod.containers[victim].starts
    pod.containers[victim].kill()
    wait_for(
        lambda: pod.containers[victim].starts > starts and not pod.ready(), 20, lambda: pod.log
    )
    pod.wait_until_ready()
    assert complete() == before
    if victim == "gpu-engine":
        log = "\n".join(pod.containers[victim].log)
        assert "arena: joined" in log
