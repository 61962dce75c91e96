"""The main job, as a user runs it: `dualpace serve`, then HTTP, with the demo model."""

import json
import os
import random
import signal
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from gateway.bomb_kinds import Bomb, bombs
from openai import BadRequestError, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from dualpace.testing.gold import TOLERANCE, GoldPrompt, smollm2_prompts, tiny_model
from dualpace.testing.otlp_collector import Collector, http_collector
from dualpace.testing.served_node import ServedNode, served_node, wait_for

PLACEMENTS = ("auto", "gpu", "cpu", "random:1")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module", params=PLACEMENTS)
def node(request: pytest.FixtureRequest) -> Iterator[ServedNode]:
    with served_node("demo", f"--placement={request.param}", "--arena-mib=512") as served:
        yield served
        served.assert_idle()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with http_collector() as made:
        yield made


@pytest.fixture(scope="module")
def hosted(collector: Collector) -> Iterator[ServedNode]:
    """A node that decodes everything on the host, and tells a collector of it."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with served_node("demo", "--placement=cpu", "--arena-mib=512", "--log-json", env=env) as served:
        yield served


def complete(node: ServedNode, **fields: Any) -> dict[str, Any]:
    response = httpx2.post(f"{node.url}/v1/completions", json=fields, timeout=120)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def check_gold(choice: dict[str, Any], prompt: GoldPrompt) -> None:
    assert choice["prompt_token_ids"] == list(prompt.token_ids)
    assert prompt.first_wrong_step(choice["token_ids"]) is None
    assert len(choice["token_ids"]) == len(prompt.greedy_ids)


def test_greedy_tokens_equal_gold(node: ServedNode) -> None:
    """All prompts at once: batches of mixed lengths, on both engines, at their own pace."""

    def ask(prompt: GoldPrompt) -> dict[str, Any]:
        return complete(
            node,
            prompt=list(prompt.token_ids),
            max_tokens=len(prompt.greedy_ids),
            temperature=0,
            ignore_eos=True,
            return_token_ids=True,
            x_dualpace=True,
        )

    prompts = smollm2_prompts()
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(ask, prompts))
    for answer, prompt in zip(answers, prompts, strict=True):
        check_gold(answer["choices"][0], prompt)
    placement = next(flag for flag in node.process.args if "placement" in str(flag))  # type: ignore[union-attr]
    totals = [a["choices"][0]["x_dualpace"]["tokens"] for a in answers]
    on_host = sum(t["cpu"] for t in totals)
    assert (on_host > 0) == (placement not in ("--placement=gpu", "--placement=auto"))


def test_first_step_logprobs_equal_gold(node: ServedNode) -> None:
    for prompt in smollm2_prompts():
        answer = complete(
            node, prompt=list(prompt.token_ids), max_tokens=2, temperature=0, logprobs=5
        )
        for step in range(2):
            ours = answer["choices"][0]["logprobs"]["top_logprobs"][step]
            if "\ufffd" in "".join(ours):
                continue  # this format has one key for all tokens that are parts of a character
            reference = [value for _, value in prompt.top_logprobs[step]]
            assert sorted(ours.values(), reverse=True)[:5] == pytest.approx(
                reference, abs=TOLERANCE
            )


def test_the_openai_client_gets_a_sensible_answer(node: ServedNode) -> None:
    with OpenAI(base_url=f"{node.url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)  # type: ignore[arg-type]
        assert whole.choices[0].message.content == "The capital of France is Paris."
        assert whole.choices[0].finish_reason == "stop"
        stream = client.chat.completions.create(  # type: ignore[call-overload]
            model=model,
            messages=QUESTION,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        response = client.responses.create(model=model, input=QUESTION, temperature=0)  # type: ignore[arg-type]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content == response.output_text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[union-attr]


def test_how_long_a_request_waited_and_took_is_told(node: ServedNode) -> None:
    def read() -> dict[str, float]:
        """Every sample of one series, by name."""
        text = httpx2.get(f"{node.url}/metrics", timeout=10).text
        families = text_string_to_metric_families(text)
        return {sample.name: sample.value for family in families for sample in family.samples}

    before = read()
    [choice] = complete(node, prompt="x", max_tokens=8, ignore_eos=True, x_dualpace=True)["choices"]
    waited_ms = choice["x_dualpace"]["queue_ms"]
    assert 0 <= waited_ms < 60_000

    def grown(name: str) -> float:
        return read()[f"vllm:{name}"] - before[f"vllm:{name}"]

    parts = ("request_queue_time", "request_prefill_time", "request_decode_time")
    for part in (*parts, "request_inference_time", "e2e_request_latency"):
        assert grown(f"{part}_seconds_count") == 1
    assert grown("request_queue_time_seconds_sum") == pytest.approx(waited_ms / 1000, abs=1e-5)
    assert grown("request_prefill_time_seconds_sum") > 0
    total = sum(grown(f"{part}_seconds_sum") for part in parts)
    assert total <= grown("e2e_request_latency_seconds_sum")
    # Engines report a few times a second.
    wait_for(lambda: grown("iteration_tokens_total_sum") >= 8, 10.0, lambda: node.log)
    assert grown("iteration_tokens_total_count") >= 8


def test_a_seed_gives_the_same_text_on_every_engine(node: ServedNode) -> None:
    """The module's nodes differ in placement alone, so the texts must be one."""
    fields = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0.9, "seed": 11}
    texts = {complete(node, **fields)["choices"][0]["text"] for _ in range(2)}
    SEEDED.update(texts)
    assert len(SEEDED) == 1


SEEDED: set[str] = set()


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_forms_and_tools_hold_on_every_engine(node: ServedNode) -> None:
    """The grammar's state goes where the request goes; what cannot be compiled is a 400."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "capital": {"type": "boolean"}},
        "required": ["city", "capital"],
        "additionalProperties": False,
    }
    with OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0) as client:
        ask: Any = client.chat.completions.create
        fields: dict[str, Any] = {"model": client.models.list().data[0].id, "messages": QUESTION}
        form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
        answer = ask(**fields, temperature=1.5, seed=3, response_format=form)
        assert answer.choices[0].finish_reason == "stop"
        assert set(json.loads(answer.choices[0].message.content)) == {"city", "capital"}
        called = ask(**fields, tools=[WEATHER], tool_choice="required", temperature=1.0, seed=88)
        assert called.choices[0].finish_reason == "tool_calls"
        for call in called.choices[0].message.tool_calls:
            assert set(json.loads(call.function.arguments)) == {"city"}
        with pytest.raises(BadRequestError, match="cannot be used"):
            ask(**fields, extra_body={"structured_outputs": {"regex": "[0-9"}})
        penalised = ask(**fields, frequency_penalty=2, logit_bias={"260": -100}, temperature=0)
        assert penalised.choices[0].message.content


def stream_lines(node: ServedNode, **fields: Any) -> Generator[dict[str, Any], None, None]:
    body = {"stream": True, "temperature": 0, "ignore_eos": True, **fields}
    with httpx2.stream("POST", f"{node.url}/v1/completions", json=body, timeout=120) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


@pytest.mark.parametrize(("placement", "stopped"), [("cpu", "gpu-engine"), ("gpu", "cpu-engine")])
def test_streams_go_on_while_the_other_engine_is_stopped(placement: str, stopped: str) -> None:
    """Token by token, with the other engine's whole process held by SIGSTOP."""
    with served_node("demo", f"--placement={placement}", "--arena-mib=256") as node:
        streams = [
            stream_lines(node, prompt=f"Story number {i}:", max_tokens=120) for i in range(3)
        ]
        for stream in streams:
            for _ in range(5):  # past the prefill, settled on their engine
                next(stream)
        engine = node.services()[stopped]
        engine.send_signal(signal.SIGSTOP)
        try:
            wait_for(
                lambda: engine.status() == psutil.STATUS_STOPPED, 5, lambda: str(engine.status())
            )
            for _ in range(40):
                for stream in streams:
                    assert next(stream)["choices"][0]["finish_reason"] is None
        finally:
            engine.send_signal(signal.SIGCONT)
        for stream in streams:
            assert [c["choices"][0]["finish_reason"] for c in stream][-1] == "length"
        node.assert_idle()


def churn(node: ServedNode, seed: int, count: int) -> None:
    """Run many streams at once; a client may leave before the first token, or at any later one."""

    def one(index: int) -> None:
        choice = random.Random(seed * 1000 + index)
        leave_after = choice.choice([None, 0, 1, 2, 3, 5, 10, 20])
        words = " ".join(["word"] * choice.randrange(1, 150))
        body = {
            "prompt": words,
            "max_tokens": choice.randrange(1, 40),
            "stream": choice.random() < 0.8,
            "ignore_eos": True,
            "n": choice.choice([1, 1, 1, 2]),
        }
        timeout = httpx2.Timeout(120, read=choice.uniform(0.05, 1.0) if leave_after == 0 else 120)
        try:
            with httpx2.stream(
                "POST", f"{node.url}/v1/completions", json=body, timeout=timeout
            ) as response:
                assert response.status_code == 200
                for number, _ in enumerate(response.iter_lines()):
                    if leave_after is not None and number >= leave_after:
                        return
        except httpx2.ReadTimeout:
            assert leave_after == 0

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(one, range(count)))


@pytest.mark.parametrize("placement", ["auto", "random:3"])
def test_clients_that_leave_free_everything_and_nothing_grows(placement: str) -> None:
    """64 streams at a time, little KV memory on both sides: all kinds of moves happen."""
    flags = ("--device-kv-mib=1", "--arena-mib=6", "--max-running=8", "--max-model-len=512")
    with served_node(tiny_model("llama3_rope"), f"--placement={placement}", *flags) as node:
        for round_number in range(2):  # reach every allocation's high-water mark
            churn(node, round_number, 96)
            node.assert_idle()
        before = {name: p.memory_info().rss for name, p in node.services().items()}
        threads = {name: p.num_threads() for name, p in node.services().items()}
        files = {name: p.num_fds() for name, p in node.services().items()}
        for round_number in range(2, 5):
            churn(node, round_number, 96)
            node.assert_idle()
        for name, process in node.services().items():
            assert process.memory_info().rss - before[name] < 24 << 20, name
            # A pool may reach its size late; what leaks grows with every round.
            assert process.num_threads() - threads[name] < 3, name
            assert process.num_fds() <= files[name] + 2, name
        gauges = node.gauges()
        assert gauges["gpu", "handoffs_total"] > 0
        assert gauges["gpu", "returns_total"] > 0


BAD_REQUESTS: list[tuple[str, bytes, int, str | None, str]] = [
    ("/v1/completions", b'{"prompt": "a"', 400, None, "JSON"),
    ("/v1/completions", b'{"prompt": "a", "temperature": NaN}', 400, "temperature", "finite"),
    ("/v1/chat/completions", b'{"messages": []}', 400, "messages", "messages"),
    ("/v1/completions", b'{"prompt": "a", "model": "gpt-9"}', 404, "model", "gpt-9"),
    ("/v1/completions", b'{"prompt": [1, 99999]}', 400, "prompt", "49152"),
    ("/v1/completions", b'{"prompt": "a", "max_tokens": 9000}', 400, None, "8192"),
    (
        "/v1/completions",
        json.dumps({"prompt": [5] * 8192}).encode(),
        400,
        None,
        "8192",
    ),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "says"), BAD_REQUESTS)
def test_bad_requests_are_named_and_the_service_goes_on(
    hosted: ServedNode, path: str, body: bytes, status: int, param: str | None, says: str
) -> None:
    headers = {"Content-Type": "application/json"}
    response = httpx2.post(f"{hosted.url}{path}", content=body, headers=headers, timeout=30)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert says in error["message"]
    if param is not None:
        assert error["param"] is not None
        assert error["param"].startswith(param)
    answer = complete(hosted, prompt="The capital of France is", max_tokens=1, temperature=0)
    assert answer["choices"][0]["text"] == " Paris"


@pytest.mark.parametrize("bomb", bombs(), ids=lambda bomb: bomb.name)
def test_a_bomb_is_refused_soon_and_its_node_goes_on(hosted: ServedNode, bomb: Bomb) -> None:
    headers = {"Content-Type": "application/json"}
    begin = time.monotonic()
    response = httpx2.post(
        f"{hosted.url}{bomb.path}", content=bomb.content(0), headers=headers, timeout=60
    )
    assert response.status_code == bomb.status, response.text[:500]
    assert time.monotonic() - begin < 10
    assert len(response.content) < 2000
    answer = complete(hosted, prompt="The capital of France is", max_tokens=1, temperature=0)
    assert answer["choices"][0]["text"] == " Paris"
    hosted.assert_idle()


def leftovers(shm_dir: Path) -> list[str]:
    return sorted(path.name for path in shm_dir.glob(f"dualpace-{os.getuid()}-*"))


def test_two_nodes_do_not_disturb_each_other_and_leave_nothing() -> None:
    shm_dir = Path("/dev/shm")
    before = leftovers(shm_dir)
    small = ("--arena-mib=64", "--device-kv-mib=64")
    with served_node("demo", *small) as first:
        with served_node("demo", "--placement=cpu", *small) as second:
            assert first.url != second.url
            for node in (first, second, first):
                answer = complete(node, prompt="The capital of France is", max_tokens=1)
                assert answer["usage"]["completion_tokens"] == 1
        answer = complete(first, prompt="The capital of France is", max_tokens=1, temperature=0)
        assert answer["choices"][0]["text"] == " Paris"
    assert leftovers(shm_dir) == before


@pytest.mark.parametrize("victim", ["supervisor", "all"])
def test_a_killed_node_leaves_nothing_that_stops_or_slows_the_next(
    victim: str, tmp_path: Path
) -> None:
    small = ("--arena-mib=64", "--device-kv-mib=64")
    node = ServedNode("demo", small, tmp_path)
    node.wait_until_ready()
    services = list(node.services().values())
    stream = stream_lines(node, prompt="A long story:", max_tokens=200)
    next(stream)
    if victim == "all":
        for service in services:
            service.kill()
    node.process.kill()
    node.process.wait()
    gone, alive = psutil.wait_procs(services, timeout=10)
    assert not alive
    assert len(gone) == 3
    stream.close()
    assert node.process.stdout is not None
    node.process.stdout.close()
    if victim == "supervisor":  # the services saw it, and took the arena with them
        assert list(tmp_path.rglob("arena")) == []
    start = time.monotonic()
    with served_node("demo", *small, shm_dir=tmp_path) as following:
        took_s = time.monotonic() - start
        assert "left behind by a node that was killed" in following.log
        answer = complete(following, prompt="The capital of France is", max_tokens=1, temperature=0)
        assert answer["choices"][0]["text"] == " Paris"
        assert took_s < 60
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--arena-mib=1000000",), "the gpu-engine ended: the arena needs 1000000 MiB"),
        (("--device=cuda",), "the gpu-engine ended: device: cuda wanted, but torch finds no"),
        (("--model=/nowhere/at/all",), "/nowhere/at/all does not exist"),
        (("--placement=left",), "'left' is not one of auto, gpu, cpu, random:<seed>"),
        (("--arena-mb=1",), "unknown argument --arena-mb; did you mean --arena-mib?"),
        (("--host=203.0.113.7",), "cannot listen on 203.0.113.7 port 0"),
    ],
)
def test_a_start_that_fails_says_why_in_its_last_line(
    flags: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    node = ServedNode("demo", flags, tmp_path)
    assert node.process.wait(60) in (1, 2)
    wait_for(lambda: bool(node.lines) and says in node.lines[-1], 5, lambda: node.log)
    assert node.process.stdout is not None
    node.process.stdout.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.5, 2.5, 3.5])
def test_a_stop_at_any_moment_of_the_start_is_clean(after_s: float, tmp_path: Path) -> None:
    """By a signal, or because whoever started the node is gone."""
    node = ServedNode("demo", ("--arena-mib=256",), tmp_path)
    wait_for(lambda: "loading" in node.log, 30, lambda: node.log)
    time.sleep(after_s)
    assert (node.let_go() if after_s in {0.5, 2.5} else node.stop()) == 0, node.log
    assert "CRITICAL" not in node.log
    assert "Traceback" not in node.log
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("after_s", [0.1, 0.4, 0.8, 1.5, 3.0])
def test_a_supervisor_killed_at_any_moment_of_the_start_takes_its_services_along(
    after_s: float, tmp_path: Path
) -> None:
    node = ServedNode("demo", ("--arena-mib=256",), tmp_path)
    wait_for(lambda: len(node.services()) == 3, 30, lambda: node.log)
    time.sleep(after_s)
    services = list(node.services().values())
    node.process.kill()
    node.process.wait()
    _, alive = psutil.wait_procs(services, timeout=20)
    assert not alive
    assert node.process.stdout is not None
    node.process.stdout.close()
    assert list(tmp_path.rglob("arena*")) == []


def test_a_reader_that_leaves_and_a_closed_terminal_do_no_harm(tmp_path: Path) -> None:
    node = ServedNode("demo", ("--arena-mib=64",), tmp_path)
    assert node.process.stdout is not None
    node.process.stdout.close()  # as `dualpace serve | head -1`
    port = wait_for_port(node)
    body = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
    answer = httpx2.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
    assert answer.json()["choices"][0]["text"] == " Paris"
    node.process.send_signal(signal.SIGHUP)
    assert node.process.wait(30) == 0
    assert list(tmp_path.iterdir()) == []


def wait_for_port(node: ServedNode) -> int:
    """Find the port of a node that can tell nobody, and wait until it serves."""

    def port() -> int:
        listening = [
            c.laddr.port
            for process in node.services().values()
            for c in process.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN
        ]
        return listening[0] if listening else 0

    def ready() -> bool:
        try:
            return (
                bool(port())
                and httpx2.get(f"http://127.0.0.1:{port()}/readyz", timeout=5).status_code == 200
            )
        except httpx2.HTTPError:
            return False

    wait_for(ready, 60, lambda: "not ready")
    return port()


@pytest.mark.parametrize("victim", ["gpu-engine", "cpu-engine", "gateway"])
def test_a_service_that_dies_for_good_ends_the_node_and_is_named(
    victim: str, tmp_path: Path
) -> None:
    flags = ("--arena-mib=64", "--device-kv-mib=64", "--max-restarts=0", "--drain-grace-s=0.2")
    node = ServedNode("demo", flags, tmp_path)
    node.wait_until_ready()
    stream = stream_lines(node, prompt="A long story:", max_tokens=500)
    next(stream)
    node.services()[victim].kill()
    seen: list[dict[str, Any]] = []
    try:
        seen.extend(stream)
    except httpx2.RemoteProtocolError:
        assert victim == "gateway"
    if victim == "gpu-engine":  # where the request was: it waits until the node stops
        assert "shutting down" in seen[-1]["error"]["message"]
    assert node.process.wait(30) == 1
    last_words = f"the {victim} ended: killed by SIGKILL (out of memory?)"
    wait_for(lambda: node.lines[-1].endswith(last_words), 5, lambda: node.log)
    assert node.process.stdout is not None
    node.process.stdout.close()
    assert list(tmp_path.iterdir()) == []


def test_one_trace_leads_through_the_gateway_and_both_engines(
    hosted: ServedNode, collector: Collector
) -> None:
    trace_id, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    body = {"prompt": "The capital of France is", "max_tokens": 6, "ignore_eos": True}
    headers = {"traceparent": f"00-{trace_id}-{caller}-01"}
    response = httpx2.post(f"{hosted.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert response.status_code == 200

    wait_for(
        lambda: len(collector.of_trace(trace_id)) == 5,
        20,
        lambda: f"{collector.of_trace(trace_id)}",
    )
    spans = {span.name: span for span in collector.of_trace(trace_id)}
    [request] = [span for span in spans.values() if span.server]
    assert request.parent_id == caller
    assert request.service == "dualpace-gateway"
    below = {name: s.service for name, s in spans.items() if s.parent_id == request.span_id}
    assert below == {
        "queue": "dualpace-gpu-engine",
        "prefill": "dualpace-gpu-engine",
        "handoff": "dualpace-gpu-engine",
        "host decode": "dualpace-cpu-engine",
    }
    assert request.attributes["gen_ai.usage.output_tokens"] == 6
    assert spans["host decode"].attributes["dualpace.tokens"] == 5
    assert "France" not in repr(collector.of_trace(trace_id))
    assert f'"trace_id": "{trace_id}", "span_id": "{request.span_id}"' in hosted.log


def test_a_taken_port_is_said_before_anything_slow(hosted: ServedNode, tmp_path: Path) -> None:
    port = hosted.url.rsplit(":", 1)[1]
    second = ServedNode("demo", (f"--port={port}",), tmp_path)
    assert second.process.wait(15) == 2
    wait_for(lambda: "Address already in use" in second.log, 5, lambda: second.log)
    assert second.process.stdout is not None
    second.process.stdout.close()
    assert list(tmp_path.iterdir()) == []
