"""Dense Assist between real processes: gold tokens, a device that stops, and live profiles."""

import dataclasses
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dualpace.checkpoint import open_checkpoint
from dualpace.profiles import write_profile
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.profile import Profile
from dualpace.testing.gold import GoldPrompt, smollm2_prompts, tiny_model, tiny_prompts
from dualpace.testing.served_node import ServedNode, served_node, wait_for


def complete(node: ServedNode, prompt: GoldPrompt, max_tokens: int | None = None) -> dict[str, Any]:
    fields = {
        "prompt": list(prompt.token_ids),
        "max_tokens": max_tokens or len(prompt.greedy_ids),
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "x_dualpace": True,
    }
    response = httpx2.post(f"{node.url}/v1/completions", json=fields, timeout=120)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    patient = {"DUALPACE_CPU_ENGINE_ASSIST_DEADLINE_S": "3"}  # of a device that is a busy CPU
    with served_node(
        "demo", "--placement=cpu", "--assist=always", "--arena-mib=512", env=patient
    ) as served:
        yield served
        served.assert_idle()


def test_greedy_tokens_equal_gold(node: ServedNode) -> None:
    prompts = smollm2_prompts()
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: complete(node, prompt), prompts))
    for answer, prompt in zip(answers, prompts, strict=True):
        assert prompt.first_wrong_step(answer["token_ids"]) is None
        told = answer["x_dualpace"]
        assert told["assisted"] <= told["tokens"]["cpu"]
    assert sum(answer["x_dualpace"]["assisted"] for answer in answers) > 10
    wait_for(lambda: node.gauges()["cpu", "assist_iterations_total"] > 10, 10, lambda: node.log)
    wait_for(lambda: node.gauges()["gpu", "assist_calls_total"] > 300, 10, lambda: node.log)


def test_a_stopped_device_holds_no_stream_up_and_is_used_again_later(node: ServedNode) -> None:
    prompt = smollm2_prompts()[0]
    device = node.services()["gpu-engine"]
    with ThreadPoolExecutor(1) as pool:
        before = node.gauges()["cpu", "tokens_total"]
        running: Future[dict[str, Any]] = pool.submit(complete, node, prompt, 120)
        wait_for(lambda: node.gauges()["cpu", "tokens_total"] > before + 10, 20, lambda: node.log)
        device.send_signal(signal.SIGSTOP)
        try:
            answer = running.result(60)
        finally:
            device.send_signal(signal.SIGCONT)
    assert prompt.first_wrong_step(answer["token_ids"][: len(prompt.greedy_ids)]) is None
    assert len(answer["token_ids"]) == 120
    wait_for(lambda: node.gauges()["cpu", "assist_misses_total"] >= 1, 10, lambda: node.log)

    def lent_again() -> bool:
        complete(node, prompt)
        return node.gauges()["cpu", "assist_open"] == 1

    wait_for(lent_again, 30, lambda: node.log)


def profile_of(model: Path) -> Profile:
    """A preset's profile, under this model's name."""
    profile = preset_profile("rtx-4090", "xeon-4510-120", "llama-3.1-8b")
    fingerprint = open_checkpoint(model).fingerprint.hex()
    return dataclasses.replace(
        profile, model=dataclasses.replace(profile.model, fingerprint=fingerprint)
    )


def test_a_profile_routes_and_is_replaced_while_serving(tmp_path: Path) -> None:
    """What cannot be used is refused, and leaves the last good one in force."""
    path = tmp_path / "profile.json"
    model, prompt = tiny_model("llama3_rope"), tiny_prompts("llama3_rope")[0]
    write_profile(path, profile_of(model))
    flags = (f"--profile={path}", "--placement=cpu", "--arena-mib=16", "--device-kv-mib=1")
    with served_node(model, *flags) as node:

        def gauge(name: str) -> float:
            return node.gauges()["cpu", name]

        assert prompt.first_wrong_step(complete(node, prompt)["token_ids"]) is None
        wait_for(
            lambda: gauge("route_assist_cheaper_total") + gauge("route_host_cheaper_total") > 10,
            10,
            lambda: node.log,
        )
        path.write_text("{")
        wait_for(lambda: gauge("profile_refused") == 1, 10, lambda: node.log)
        assert "no JSON document" in node.log
        assert gauge("profile_loads_total") == 1
        write_profile(path, profile_of(model))
        wait_for(lambda: gauge("profile_refused") == 0, 10, lambda: node.log)
        assert prompt.first_wrong_step(complete(node, prompt)["token_ids"]) is None


def test_a_profile_of_another_model_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, profile_of(tiny_model("qwen2")))
    node = ServedNode(
        str(tiny_model("llama3_rope")),
        (f"--profile={path}", "--arena-mib=16", "--device-kv-mib=1"),
        tmp_path,
    )
    assert node.process.wait(60) == 1
    wait_for(lambda: "another model" in node.lines[-1], 5, lambda: node.log)
    assert node.process.stdout is not None
    node.process.stdout.close()
