"""Models: quantities, rules and their messages, the structural schema, core plans, reports."""

import base64
import gzip
import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pydantic import ValidationError

from dualpace.operator import names
from dualpace.operator.cores import CoresError, plan_cores
from dualpace.operator.crds import profile_crd, service_crd
from dualpace.operator.model.base import faults
from dualpace.operator.model.profile import Topology
from dualpace.operator.model.quantity import parse_bytes, parse_cpus, parse_duration
from dualpace.operator.model.service import ServiceSpec
from dualpace.operator.observed import NodeView, covers, node_view
from dualpace.operator.report import ReportError, decode_report
from tests.cluster.kubelet import node_status, packed, profile_document


def spec(**parts: Any) -> ServiceSpec:
    return ServiceSpec.model_validate(
        {"model": {"claim": {"name": "m"}}, "nodeSelector": {"a": "b"}, **parts}
    )


def node(cpus: str, **labels: str) -> NodeView:
    return node_view({"metadata": {"name": "n", "labels": labels}, **node_status(cpus)})


def test_quantities() -> None:
    assert parse_bytes("64Gi") == 64 << 30
    assert parse_bytes("5M") == 5_000_000
    assert [str(parse_cpus(t)) for t in ("4", "0.5", "500m")] == ["4", "0.5", "0.5"]
    assert parse_duration("1h30m5s") == 5405
    for parse, text in ((parse_bytes, "1e3"), (parse_cpus, "x"), (parse_duration, "")):
        with pytest.raises(ValueError, match="is not a"):
            parse(text)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {}}, "spec.model: exactly one of claim, image and hub must be set"),
        ({"arena": {"size": "1Mi"}}, "spec.arena: size must be at least 64Mi"),
        ({"arena": {"size": "0"}}, "spec.arena.size: must be more than zero"),
        (
            {"profiling": {"reprofile": "Window"}},
            "spec.profiling: window must be set when reprofile is Window",
        ),
        ({"gateway": {"prot": 1}}, "spec.gateway.prot: extra inputs are not permitted"),
        (
            {"gateway": {"env": [{"name": "A"}]}},
            "spec.gateway.env[0]: exactly one of value and secret must be set",
        ),
    ],
)
def test_faulty_specs_name_the_field_and_what_is_allowed(
    parts: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError) as error:
        spec(**parts)
    assert list(faults(error.value)) == [message]


def test_faults_never_repeat_values() -> None:
    with pytest.raises(ValidationError) as error:
        spec(gateway={"env": [{"name": "KEY", "value": ["s3cret"]}]}, dtype="s3cret")
    assert "s3cret" not in "".join(faults(error.value))


def test_the_schemas_are_structural() -> None:
    def check(node: dict[str, Any], at: str) -> None:
        assert "type" in node, at
        assert not node.keys() & {"$ref", "anyOf", "oneOf", "const", "title", "$defs"}, at
        for name, child in node.get("properties", {}).items():
            check(child, f"{at}.{name}")
        for key in ("items", "additionalProperties"):
            if key in node:
                check(node[key], f"{at}.{key}")

    for crd in (service_crd(), profile_crd()):
        check(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "root")


@given(
    cpus=st.integers(1, 512),
    threads=st.integers(1, 4),
    numa=st.integers(1, 4),
    wanted=st.integers(0, 64),
    reserved=st.integers(0, 16),
    gateway=st.integers(1, 8),
    gpu=st.integers(1, 16),
)
def test_core_plans_are_whole_cores_and_fit(
    cpus: int, threads: int, numa: int, wanted: int, reserved: int, gateway: int, gpu: int
) -> None:
    topology = Topology(cpus=max(cpus, threads * numa), threads_per_core=threads, numa_nodes=numa)
    service = spec(
        gateway={"cpus": gateway},
        gpuEngine={"cpus": gpu},
        cpuEngine={"cpus": wanted},
        pinning={"reservedCpus": reserved},
    )
    try:
        plan = plan_cores(service, node(str(cpus)), topology)
    except CoresError as error:
        assert f"{cpus} allocatable CPUs" in str(error)  # noqa: PT017 - either may be right
        return
    assert plan.total <= cpus
    assert plan.gateway >= gateway
    assert plan.gpu_engine >= gpu
    assert all(n % threads == 0 for n in (plan.gateway, plan.gpu_engine, plan.cpu_engine))
    assert 1 <= plan.cpu_engine_threads <= max(1, plan.cpu_engine // threads - 1)
    if wanted:
        assert plan.cpu_engine >= wanted
    else:
        assert plan.total + reserved <= cpus
        assert numa == 1 or plan.cpu_engine <= topology.cpus // numa


def test_threads_of_a_core_come_from_spec_profile_or_labels() -> None:
    assert plan_cores(spec(gateway={"cpus": 1}), node("32"), None).gateway == 2
    off = {"feature.node.kubernetes.io/cpu-hardware_multithreading": "false"}
    assert plan_cores(spec(gateway={"cpus": 1}), node("32", **off), None).gateway == 1
    given_ = spec(gateway={"cpus": 1}, pinning={"threadsPerCore": 4})
    assert plan_cores(given_, node("32"), None).gateway == 4
    as_given = plan_cores(spec(pinning={"policy": "AsGiven"}), node("33"), None)
    assert (as_given.cpu_engine, as_given.cpu_engine_threads) == (25, 25)


TOPOLOGY = {"cpus": 32, "threads_per_core": 2, "numa_nodes": 1}


def test_reports_are_read_plain_and_packed() -> None:
    document = profile_document()
    message = packed(document, TOPOLOGY)
    assert len(message) <= 4096  # what a kubelet keeps
    plain = json.dumps(
        {"format": "dualpace-profile-report/1", "profile": document, "topology": TOPOLOGY}
    )
    assert decode_report(plain) == decode_report(message)
    report = decode_report(message)
    assert json.loads(report.document) == document
    assert [(t.name, t.value) for t in report.thresholds] == [("assist_min_rows", 24.0)]
    assert report.topology == Topology.model_validate(TOPOLOGY)


def test_damaged_reports_are_refused_with_a_reason() -> None:
    document = profile_document()
    message = packed(document, TOPOLOGY)
    bomb = "gz:" + base64.b64encode(gzip.compress(b" " * (1 << 24), mtime=0)).decode()
    twice = {**document, "thresholds": document["thresholds"] * 2}
    for damaged, reason in (
        (message[:-30], "cut off|decompressed"),
        ("gz:" + message[3:-4] + "AAAA", "decompressed"),
        (bomb, "over 262144 bytes"),
        (packed({**document, "origin": "guessed"}, TOPOLOGY), "origin: 'guessed' is not one of"),
        (packed(document, {**TOPOLOGY, "cpus": 0}), r"report\.cpus"),
        (packed(twice, TOPOLOGY), "twice"),
        (packed(None, TOPOLOGY), "profile: an object is needed"),
    ):
        with pytest.raises(ReportError, match=reason):
            decode_report(damaged)


@given(st.text(min_size=1, max_size=60), st.text("abc.-", min_size=1, max_size=253))
def test_names_are_short_and_never_shared(service: str, node_name: str) -> None:
    name = names.node_object(service, node_name, "-p12")
    assert len(name) <= 63
    assert name != names.node_object(service + "x", node_name, "-p12")
    assert names.node_object("a-b", "c") != names.node_object("a", "b-c")


JSON = st.recursive(
    st.integers() | st.text(),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(), part, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), JSON)
def test_what_is_wanted_is_covered_by_itself_and_more(wanted: dict[str, Any], more: Any) -> None:
    assert covers(wanted, wanted)
    assert covers({**wanted, "added by others": more}, wanted)
    if wanted:
        key = next(iter(wanted))
        assert not covers({k: v for k, v in wanted.items() if k != key}, wanted)
        assert not covers({**wanted, key: ["something else"]}, {**wanted, key: more}) or more == [
            "something else"
        ]
