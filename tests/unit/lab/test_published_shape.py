"""The baselines against a third party's measurements of both on an RTX 4090.

2,000 requests of Azure's code trace, then 2,000 of the conversation trace; Llama-3.1-8B, 26,400 KV
tokens on the device, 60 GiB on the host (cilinmengye/NEO). Mean TTFT and mean TPOT, seconds:

    vLLM 0.7.3  1.5 req/s .79, .033   2.5 req/s 47.8, .042   3.1 req/s 96.2, .048
    NEO         1.5 req/s .215, .033  2.5 req/s .287, .207   3.1 req/s 14.5, .572

What is simulated is faster than both (that vLLM ran without CUDA graphs and with other limits), so
that its knee comes half a request per second later. The shape is held, not the numbers.
"""

from dualpace.lab.metrics import Metrics
from dualpace.lab.simulation import simulated_metrics
from dualpace.lab.systems import SYSTEMS
from dualpace.lab.traces import workload
from dualpace.lab.workload import poisson


def at(system: str, rate: float) -> Metrics:
    return simulated_metrics(SYSTEMS[system], poisson(workload("azure-code+conv"), rate, 0))


def test_vllm_keeps_its_pace_and_lets_requests_queue() -> None:
    low, high = at("vllm", 1.5), at("vllm", 3.1)
    assert low.ttft_mean_s < 0.8
    assert high.ttft_mean_s > 20 * low.ttft_mean_s
    assert low.tpot_mean_s < high.tpot_mean_s < 0.05


def test_neo_starts_at_once_and_slows_down() -> None:
    low, high = at("neo", 1.5), at("neo", 3.1)
    assert low.ttft_mean_s < 0.3
    assert high.ttft_mean_s < 0.5
    assert low.tpot_mean_s < 0.035
    assert high.tpot_mean_s > 4 * low.tpot_mean_s
