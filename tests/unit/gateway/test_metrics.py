"""The metrics page as scrapers read it."""

from collections.abc import Iterable

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from dualpace.core.request import Engine, FinishReason
from dualpace.gateway.telemetry import metric_names as names
from dualpace.testing.fake_backend import End, FakeBackend, Hold, Pause, Start, always
from tests.unit.gateway.conftest import LiveServer, Serve
from tests.unit.gateway.vllm_names import COMMON, FAMILIES

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


BUSY = gauges(
    {
        "running": 3, "waiting": 5, "compiling": 2, "free_blocks": 30, "total_blocks": 40,
        "block_size": 16, "preemptions_total": 4, "tokens_total": 70,
        "iteration_tokens_le_8": 2, "iteration_tokens_le_64": 1,
    },
    {
        "running": 5, "evictions_total": 3, "free_blocks": 0, "total_blocks": 10,
        "tokens_total": 9, "iteration_tokens_le_1": 1, "iteration_tokens_le_8": 1,
    },
)  # fmt: skip


def test_vllms_metrics_are_all_there_once_with_their_types(serve: Serve) -> None:
    server = serve(backend=BUSY)
    server.chat("Hi")
    families = scrape(server)
    for name, (kind, labels) in FAMILIES.items():
        family = families[name]
        assert family.type == kind, name
        series = [
            tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            for sample in family.samples
            if not sample.name.endswith(("_sum", "_bucket"))
        ]
        assert series, name
        assert len(series) == len(set(series)), name
        if labels <= COMMON or name.endswith("_info"):
            assert len(series) == 1, name
        assert all(labels <= {key for key, _ in one} for one in series), name
    ours = {name for name in families if name.startswith("vllm:")}
    assert ours == set(FAMILIES)


def test_what_engines_count_is_told_as_vllm_would(serve: Serve) -> None:
    families = scrape(serve(backend=BUSY))
    assert value(families, "vllm:num_requests_waiting_by_reason", reason="capacity") == 3
    assert value(families, "vllm:num_requests_waiting_by_reason", reason="deferred") == 2
    assert value(families, "vllm:num_preemptions_total") == 7
    assert value(families, "vllm:cache_config_info", block_size="16", num_gpu_blocks="40") == 1
    assert value(families, "vllm:iteration_tokens_total_count") == 5
    assert value(families, "vllm:iteration_tokens_total_sum") == 79
    for bound, count in (("1.0", 1), ("8.0", 4), ("32.0", 4), ("64.0", 5), ("+Inf", 5)):
        assert value(families, "vllm:iteration_tokens_total_bucket", le=bound) == count
    assert not any("iteration_tokens" in name for name in families if "engine" in name)


def test_the_parts_of_a_generations_time_add_up(serve: Serve) -> None:
    server = serve(
        always(Pause(0.08), Start(0.05), Pause(0.04), 1000, Pause(0.02), 1001, Pause(0.02), 1002,
               Pause(0.05), End(FinishReason.LENGTH))
    )  # fmt: skip
    body = server.complete("Hi", max_tokens=9).json()
    families = scrape(server)

    def total(name: str) -> float:
        assert value(families, f"vllm:{name}_count") == 1
        return value(families, f"vllm:{name}_sum")

    queue = total("request_queue_time_seconds")
    prefill = total("request_prefill_time_seconds")
    decode = total("request_decode_time_seconds")
    assert queue == 0.05
    assert prefill >= 0.07
    assert decode >= 0.04
    assert total("request_inference_time_seconds") == pytest.approx(prefill + decode)
    assert total("request_time_per_output_token_seconds") == pytest.approx(decode / 2)
    first = total("time_to_first_token_seconds")
    assert first >= queue + prefill - 0.001
    assert total("e2e_request_latency_seconds") >= first + decode + 0.05
    assert total("request_prompt_tokens") == body["usage"]["prompt_tokens"]
    assert total("request_generation_tokens") == body["usage"]["completion_tokens"] == 3


def test_a_single_token_has_no_time_per_token_and_unknown_waits_are_not_made_up(
    serve: Serve,
) -> None:
    server = serve(always(EOS))
    server.chat("Hi")
    families = scrape(server)
    for name in ("time_per_output_token", "queue_time", "prefill_time", "inference_time"):
        assert value(families, f"vllm:request_{name}_seconds_count") == 0
    assert value(families, "vllm:request_decode_time_seconds_count") == 1


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
    assert len(ours) <= 128 + 2


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
