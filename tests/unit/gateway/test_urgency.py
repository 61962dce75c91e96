"""What headers say of a request's urgency: two senses of priority, targets, and their outcome."""

from typing import Any

import grpc
import pytest

from dualpace.api import methods
from dualpace.api.v1 import inference_pb2 as pb
from dualpace.core.errors import SettingsError
from dualpace.core.request import FinishReason
from dualpace.gateway.settings import GatewaySettings
from dualpace.testing.fake_backend import End, Pause, always
from tests.unit.gateway.conftest import LiveServer, Serve
from tests.unit.gateway.test_grpc import grpc_port
from tests.unit.gateway.test_metrics import scrape, value

EOS = 2
OBJECTIVES = "chat=10, batch=-3"


def sent_params(server: LiveServer, headers: dict[str, str], **fields: Any) -> Any:
    body = {"prompt": "x", **fields}
    response = server.post("/v1/completions", body, headers=headers)
    assert response.status_code == 200, response.text
    return server.backend.generations[-1].params


PRIORITIES: list[tuple[dict[str, str], dict[str, Any], int]] = [
    ({}, {}, 0),
    ({}, {"priority": -7}, -7),
    ({"X-Request-Priority": "-4"}, {}, -4),
    ({"x-request-priority": "4"}, {"priority": 2}, 2),
    ({"x-request-priority": "4"}, {"priority": 0}, 0),
    # An objective's priority is higher for sooner, the engines' is lower for sooner.
    ({"x-llm-d-inference-objective": "chat"}, {}, -10),
    ({"x-gateway-inference-objective": "batch"}, {}, 3),
    ({"x-llm-d-inference-objective": "chat", "x-gateway-inference-objective": "batch"}, {}, -10),
    ({"x-llm-d-inference-objective": "never heard of"}, {}, 0),
    ({"x-llm-d-inference-objective": "chat"}, {"priority": 1}, 1),
    ({"x-llm-d-inference-objective": "chat", "x-request-priority": "9"}, {}, 9),
]


def test_priorities(serve: Serve) -> None:
    server = serve(always(EOS), inference_objectives=OBJECTIVES)
    for headers, fields, priority in PRIORITIES:
        assert sent_params(server, headers, **fields).priority == priority, headers


def test_targets_reach_the_engines_on_every_route(serve: Serve) -> None:
    server = serve(always(EOS), first_token_target_s=3.0)
    headers = {"x-llm-d-slo-ttft-ms": "250", "x-llm-d-slo-tpot-ms": "40.5"}
    bodies = {
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/responses": {"input": "x"},
    }
    for path, body in bodies.items():
        assert server.post(path, body, headers=headers).status_code == 200
        params = server.backend.generations[-1].params
        assert (params.first_token_target_s, params.token_target_s) == (0.25, 0.0405)
    old = {"x-slo-ttft-ms": "10", "x-slo-tpot-ms": "20"}
    params = sent_params(server, old)
    assert (params.first_token_target_s, params.token_target_s) == (0.01, 0.02)
    params = sent_params(server, {})
    assert (params.first_token_target_s, params.token_target_s) == (3.0, None)


TARGETS = ("x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
NO_TARGETS = ("", "0", "-1", "soon", "nan", "inf", "1e99", "86400001", "9" * 30)
NO_PRIORITIES = ("", "high", "1.5", "--1", "2147483648", "9" * 30)


def test_headers_that_make_no_sense_are_named(serve: Serve) -> None:
    server = serve(always(EOS))
    senseless = [(name, value) for name in TARGETS for value in NO_TARGETS]
    senseless += [("x-request-priority", value) for value in NO_PRIORITIES]
    for name, bad in senseless:
        response = server.post("/v1/completions", {"prompt": "x"}, headers={name: bad})
        assert response.status_code == 400, (name, bad)
        assert response.json()["error"]["param"] == name
    assert not server.backend.generations


def test_grpc_has_them_as_metadata(serve: Serve) -> None:
    server = serve(always(EOS), grpc_port=0)
    with grpc_port(server) as address, grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_stream(
            methods.GENERATE,
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        metadata = (("x-request-priority", "3"), ("x-llm-d-slo-ttft-ms", "250"))
        list(call(pb.GenerateRequest(text="x"), metadata=metadata))
        params = server.backend.generations[-1].params
        assert (params.priority, params.first_token_target_s) == (3, 0.25)
        with pytest.raises(grpc.RpcError, match="x-slo-tpot-ms"):
            list(call(pb.GenerateRequest(text="x"), metadata=(("x-slo-tpot-ms", "soon"),)))


def outcomes(server: LiveServer, slo: str) -> tuple[float, float]:
    families = scrape(server)
    met, missed = (
        value(families, "dualpace_slo_total", slo=slo, outcome=outcome)
        for outcome in ("met", "missed")
    )
    return met, missed


def test_whether_targets_were_met_is_counted(serve: Serve) -> None:
    server = serve(always(Pause(0.05), 1000, Pause(0.05), 1001, EOS))
    sent_params(server, {})
    assert outcomes(server, "ttft") == outcomes(server, "tpot") == (0, 0)
    sent_params(server, {"x-llm-d-slo-ttft-ms": "10000", "x-llm-d-slo-tpot-ms": "10000"})
    assert outcomes(server, "ttft") == outcomes(server, "tpot") == (1, 0)
    sent_params(server, {"x-llm-d-slo-ttft-ms": "20", "x-llm-d-slo-tpot-ms": "5"})
    assert outcomes(server, "ttft") == outcomes(server, "tpot") == (1, 1)


def test_a_first_token_that_never_came_missed_its_target_once_that_has_passed(
    serve: Serve,
) -> None:
    server = serve(always(Pause(0.05), End(FinishReason.ERROR)))
    for target_ms, missed in (("100000", 0), ("10", 1)):
        response = server.post(
            "/v1/completions", {"prompt": "x"}, headers={"x-llm-d-slo-ttft-ms": target_ms}
        )
        assert response.status_code == 500
        assert outcomes(server, "ttft") == (0, missed)


@pytest.mark.parametrize("text", ["chat", "chat=", "=3", "chat=high", "a=99999999999"])
def test_objectives_are_checked_at_the_start(tmp_path: Any, text: str) -> None:
    with pytest.raises(SettingsError, match="inference_objectives"):
        GatewaySettings(model="-", run_dir=str(tmp_path), inference_objectives=text)
