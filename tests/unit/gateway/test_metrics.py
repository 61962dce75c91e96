"""The metrics page as scrapers read it."""

from collections.abc import Iterable

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from dualpace.core.request import Engine, FinishReason
from dualpace.gateway import metric_names as names
from dualpace.testing.fake_backend import End, FakeBackend, Hold, Pause, always
from tests.unit.gateway.conftest import LiveServer, Serve

EOS = 2


def scrape(server: LiveServer) -> dict[str, Metric]:
    response = server.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(response.text))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family for family in families}


def value(families: dict[str, Metric], sample: str, **labels: str) -> float:
    found = [
        s.value
        for family in families.values()
        for s in family.samples
        if s.name == sample and labels.items() <= s.labels.items()
    ]
    assert len(found) == 1, f"{sample} {labels}: {found}"
    return float(found[0])


def gauges(gpu: dict[str, float], cpu: dict[str, float]) -> FakeBackend:
    backend = FakeBackend(always(EOS))
    backend.gauges = {Engine.GPU: gpu, Engine.CPU: cpu}
    return backend


@pytest.mark.parametrize(
    "backend",
    [
        gauges({}, {}),
        gauges(
            {"running": 3, "waiting": 2, "free_blocks": 30, "total_blocks": 40},
            {"running": 5, "waiting": 1, "free_blocks": 0, "total_blocks": 10},
        ),
    ],
    ids=["nothing reported", "busy"],
)
def test_gauges_that_pickers_read_have_exactly_one_series(
    serve: Serve, backend: FakeBackend
) -> None:
    families = scrape(serve(backend=backend))
    for name in (names.REQUESTS_RUNNING, names.REQUESTS_WAITING, names.KV_CACHE_USAGE):
        assert families[name].type == "gauge"
        assert len(families[name].samples) == 1


def test_running_and_waiting_are_summed_and_kv_usage_is_the_gpus(serve: Serve) -> None:
    backend = gauges(
        {"running": 3, "waiting": 2, "free_blocks": 30, "total_blocks": 40},
        {"running": 5, "waiting": 1, "free_blocks": 0, "total_blocks": 10},
    )
    families = scrape(serve(backend=backend))
    assert value(families, "vllm:num_requests_running") == 8
    assert value(families, "vllm:num_requests_waiting") == 3
    assert value(families, "vllm:kv_cache_usage_perc") == 0.25
    for gauge, gpu, cpu in (("running", 3, 5), ("free_blocks", 30, 0), ("total_blocks", 40, 10)):
        assert value(families, f"dualpace_engine_{gauge}", engine="gpu") == gpu
        assert value(families, f"dualpace_engine_{gauge}", engine="cpu") == cpu


def test_what_engines_count_is_a_counter(serve: Serve) -> None:
    families = scrape(serve(backend=gauges({"steps_total": 7, "running": 1}, {"steps_total": 9})))
    assert families["dualpace_engine_steps"].type == "counter"
    assert value(families, "dualpace_engine_steps_total", engine="cpu") == 9
    assert families["dualpace_engine_running"].type == "gauge"


def test_odd_and_superfluous_gauges_do_not_spoil_the_page(serve: Serve) -> None:
    odd = {"connected": 7.0, "no spaces": 1.0, "Upper": 1.0, "x" * 100: 1.0, "fine": 1.0}
    many = {f"gauge_{i}": 1.0 for i in range(1000)}
    families = scrape(serve(backend=gauges(odd, many)))
    assert value(families, "dualpace_engine_fine", engine="gpu") == 1
    assert value(families, "dualpace_engine_connected", engine="gpu") == 1
    ours = [name for name in families if name.startswith("dualpace_engine_")]
    assert len(ours) <= 64 + 2


def test_requests_and_their_tokens_are_counted(serve: Serve) -> None:
    server = serve(always(1000, Pause(0.01), 1001, 1002, EOS))
    body = server.chat("Hi", n=2).json()
    server.complete("x", max_tokens=2)
    families = scrape(server)
    generated = body["usage"]["completion_tokens"] + 2
    assert value(families, "vllm:generation_tokens_total") == generated
    by_engine = [value(families, "dualpace_tokens_total", engine=e) for e in ("gpu", "cpu")]
    assert sum(by_engine) == generated
    assert min(by_engine) > 0
    prompts = sum(len(g.prompt) for g in server.backend.generations)
    assert value(families, "vllm:prompt_tokens_total") == prompts
    assert value(families, "vllm:request_success_total", finished_reason="stop") == 2
    assert value(families, "vllm:request_success_total", finished_reason="length") == 1
    for name, count in (
        ("vllm:time_to_first_token_seconds", 3),
        ("vllm:inter_token_latency_seconds", generated - 3),
        ("vllm:e2e_request_latency_seconds", 3),
    ):
        assert value(families, f"{name}_count") == count
        assert value(families, f"{name}_bucket", le="+Inf") == count
    assert value(families, "vllm:inter_token_latency_seconds_sum") >= 3 * 0.01


def test_generations_that_fail_with_another_are_errors_too(serve: Serve) -> None:
    scripts = [always(EOS), always(Pause(0.02), End(FinishReason.ERROR)), always(Hold())]
    server = serve(lambda prompt, params: scripts[params.sampling.seed](prompt, params))
    assert server.chat("Hi", n=3, seed=0).status_code == 500
    families = scrape(server)
    assert value(families, "vllm:request_success_total", finished_reason="stop") == 1
    assert value(families, "vllm:request_success_total", finished_reason="error") == 2


def test_tokens_after_a_stop_string_are_not_counted(serve: Serve) -> None:
    server = serve(always(*[1000] * 30, EOS))
    stop = server.gateway.model.token_text.label(1000)
    body = server.chat("Hi", stop=stop).json()
    assert body["usage"]["completion_tokens"] == 1
    assert value(scrape(server), "vllm:generation_tokens_total") == 1


def http_labels(families: dict[str, Metric]) -> set[tuple[str, str, str]]:
    return {
        (s.labels["handler"], s.labels["method"], s.labels["status"])
        for s in families["http_requests"].samples
    }


def test_http_labels_come_from_a_known_set_whatever_is_sent(serve: Serve) -> None:
    server = serve(always(EOS))
    server.chat("Hi")
    server.client.get("/v1/models/whatever-i-like")
    paths: Iterable[str] = (f"/nothing/{i}" for i in range(20))
    for path in paths:
        server.client.get(path)
    server.client.request("PROPFIND", "/v1/models")
    server.client.post("/v1/models")
    server.chat("Hi", temperature="x")
    assert http_labels(scrape(server)) == {
        ("/v1/chat/completions", "POST", "200"),
        ("/v1/chat/completions", "POST", "400"),
        ("/v1/models/{model}", "GET", "404"),
        ("/v1/models", "POST", "405"),
        ("/v1/models", "other", "405"),
        ("other", "GET", "404"),
    }
    families = scrape(server)
    assert value(families, "http_request_duration_seconds_count", handler="other") == 20


def test_no_series_tells_when_others_were_created(serve: Serve) -> None:
    server = serve(always(EOS))
    server.chat("Hi")
    assert "_created" not in server.client.get("/metrics").text
