"""Manifests describe the services as they are, and ask for nothing that they should not."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dualpace.core.service import ServiceSettings
from dualpace.core.settings import parse_settings
from dualpace.core.wait_closed import WaitSettings
from dualpace.cpu_engine.settings import CpuEngineSettings
from dualpace.gateway.settings import GatewaySettings
from dualpace.gpu_engine.settings import GpuEngineSettings
from dualpace.ipc.probe import ProbeSettings
from dualpace.operator.cores import CorePlan
from dualpace.operator.crds import main as crds_main
from dualpace.operator.crds import service_crd
from dualpace.operator.images import ServiceImages, images_of
from dualpace.operator.job import profile_job
from dualpace.operator.model.profile import Fingerprint
from dualpace.operator.model.service import ServiceSpec
from dualpace.operator.pod import PodContext, node_pod
from dualpace.operator.settings import OperatorSettings
from dualpace.profiler.settings import ProfilerSettings
from dualpace.tracing.settings import TracingSettings
from tests.cluster.tools import CRD_CHART
from tests.unit.operator.fake_cluster import IMAGES

CORES = CorePlan(gateway=2, gpu_engine=4, cpu_engine=24, cpu_engine_threads=11)
SERVICES = {
    "gateway": GatewaySettings,
    "gpu-engine": GpuEngineSettings,
    "cpu-engine": CpuEngineSettings,
}
SPECS: dict[str, dict[str, Any]] = {
    "plain": {"model": {"claim": {"name": "models"}}},
    "everything": {
        "model": {
            "hub": {
                "repository": "org/name",
                "revision": "main",
                "tokenSecret": {"name": "hf", "key": "token"},
                "cacheClaim": "cache",
            },
            "servedName": "a,b",
        },
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "runtimeClassName": "nvidia",
        "priorityClassName": "high",
        "images": {"pullSecrets": ["pull"]},
        "gateway": {
            "env": [{"name": "DUALPACE_GATEWAY_MAX_CHOICES", "value": "4"}],
            "apiKeys": {"name": "keys", "key": "keys.json"},
            "redisUrl": {"name": "redis", "key": "url"},
        },
        "objectives": {"itlMs": 100},
        "tracing": {"endpoint": "http://collector.observability:4317", "protocol": "grpc"},
        "pinning": {"pinThreads": True},
        "cpuEngine": {"env": [{"name": "DUALPACE_MAX_ISA", "value": "avx2"}]},
    },
    "image volume": {"model": {"image": {"reference": "r/model:1", "path": "m.gguf"}}},
    "no GPU": {"model": {"claim": {"name": "m"}}, "gpuEngine": {"device": "cpu"}},
}


def context(spec: dict[str, Any]) -> PodContext:
    return PodContext(
        namespace="llm",
        service="chat",
        owner_uid="u",
        node="node.example",
        node_uid="n",
        spec=ServiceSpec.model_validate({"nodeSelector": {"pool": "gpu"}, **spec}),
        images=IMAGES,
    )


@pytest.fixture(params=SPECS)
def pod(request: pytest.FixtureRequest) -> dict[str, Any]:
    return node_pod(context(SPECS[request.param]), CORES, profiled=request.param != "plain")


def test_every_flag_is_taken_by_its_service(
    pod: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for container in pod["spec"]["containers"]:
        flags = [
            f"--run-dir={tmp_path}" if flag.startswith("--run-dir") else flag
            for flag in container["args"]
        ]
        prefix = f"DUALPACE_{container['name'].upper().replace('-', '_')}_"
        settings: ServiceSettings = parse_settings(
            SERVICES[container["name"]], flags, {}, program="x", prefix=prefix
        )
        assert settings.termination_log == "/dev/termination-log"
        assert importlib.util.find_spec(container["command"][-1] + ".__main__") is not None


@pytest.mark.parametrize("name", SPECS)
def test_the_profiler_takes_its_flags(name: str) -> None:
    job = profile_job(context(SPECS[name]), CORES, Fingerprint(), attempt=1, causes={})
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][-1] == "dualpace.profiler"
    settings = parse_settings(ProfilerSettings, container["args"], {}, program="x", prefix="")
    assert settings.report == settings.termination_log == "/dev/termination-log"
    assert settings.target is None


def test_variables_of_the_gateway_are_settings(pod: dict[str, Any]) -> None:
    known = {f"DUALPACE_GATEWAY_{f.name.upper()}" for f in dataclasses.fields(GatewaySettings)}
    variables = {v["name"] for v in pod["spec"]["containers"][0]["env"]}
    assert {name for name in variables if not name.startswith("OTEL_")} <= known


def test_every_container_traces_where_that_is_asked_for_and_nowhere_else() -> None:
    endpoint = "http://collector:4318"
    spec = SPECS["everything"] | {"tracing": {"endpoint": endpoint}}
    own = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://other:4318"}
    spec = spec | {"gpuEngine": {"env": [own]}}
    containers = node_pod(context(spec), CORES, profiled=True)["spec"]["containers"]
    for container in containers:
        env = {v["name"]: v.get("value") for v in container["env"]}
        assert len(env) == len(container["env"]), "a variable is there twice"
        assert TracingSettings.read(env) == TracingSettings("http/protobuf")
        wanted = own["value"] if container["name"] == "gpu-engine" else endpoint
        assert env["OTEL_EXPORTER_OTLP_ENDPOINT"] == wanted
        attributes = dict(pair.split("=") for pair in env["OTEL_RESOURCE_ATTRIBUTES"].split(","))
        assert attributes["service.namespace"] == "llm.chat"
        assert attributes["k8s.node.name"] == "node.example"
    plain = node_pod(context(SPECS["plain"]), CORES, profiled=True)["spec"]["containers"]
    assert not any(v["name"].startswith("OTEL_") for c in plain for v in c["env"])


def test_hooks_and_probes_are_programs_that_take_their_flags(pod: dict[str, Any]) -> None:
    known = {"dualpace.ipc.probe": ProbeSettings, "dualpace.core.wait_closed": WaitSettings}
    for container in pod["spec"]["containers"][1:]:
        commands = [container["lifecycle"]["preStop"]["exec"]["command"]]
        commands += [container[p]["exec"]["command"] for p in ("startupProbe", "livenessProbe")]
        for python, _, module, *flags in commands:
            assert python == "python"
            parse_settings(known[module], flags, {}, program="x", prefix="")


def test_engines_outlive_the_gateway_within_the_grace(pod: dict[str, Any]) -> None:
    gateway, *engines = pod["spec"]["containers"]
    lag = int(gateway["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = next(
        int(flag.split("=")[1]) for flag in gateway["args"] if flag.startswith("--drain-grace-s")
    )
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    assert grace > lag + drain
    for engine in engines:
        flag = engine["lifecycle"]["preStop"]["exec"]["command"][-1]
        assert lag + drain < int(flag.split("=")[1]) < grace


def test_the_pod_is_guaranteed_and_has_whole_cpus(pod: dict[str, Any]) -> None:
    containers = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
    for container in containers:
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["resources"]["limits"]["cpu"].isdecimal()


def test_memory_of_the_arena_is_the_gpu_engines(pod: dict[str, Any]) -> None:
    run = next(v for v in pod["spec"]["volumes"] if v["name"] == "run")["emptyDir"]
    assert run == {"medium": "Memory", "sizeLimit": f"{16 * 1024 + 64}Mi"}
    memory = {c["name"]: c["resources"]["limits"]["memory"] for c in pod["spec"]["containers"]}
    assert memory["gpu-engine"] == f"{2 * 16 * 1024 + 64}Mi"
    assert memory["cpu-engine"] == f"{24 * 1024}Mi"


def test_only_the_gpu_engine_asks_for_the_gpu() -> None:
    for name, asked in (("plain", ["gpu-engine"]), ("no GPU", [])):
        containers = node_pod(context(SPECS[name]), CORES, profiled=True)["spec"]["containers"]
        having = [c["name"] for c in containers if "nvidia.com/gpu" in c["resources"]["limits"]]
        assert having == asked


@pytest.mark.parametrize("name", SPECS)
def test_pods_and_jobs_fit_kubernetes_and_have_no_rights(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    job = profile_job(context(SPECS[name]), CORES, Fingerprint(), attempt=1, causes={})
    for manifest in (node_pod(context(SPECS[name]), CORES, profiled=True), job):
        for version in ("1.28", "1.30", "1.34", "1.37"):
            if name == "image volume" and version in ("1.28", "1.30"):
                continue  # not yet there
            validate.validate(manifest, version, strict=True)
        spec = manifest["spec"].get("template", manifest)["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"] + spec.get("initContainers", []):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_the_template_changes_with_what_needs_a_restart_alone() -> None:
    def template(**spec: Any) -> str:
        pod = node_pod(context({**SPECS["plain"], **spec}), CORES, profiled=True)
        return str(pod["metadata"]["annotations"]["serving.dualpace.io/template"])

    same = (
        {"profiling": {"maxAge": "1h"}},
        {"update": {"maxUnavailable": 3}},
    )
    other = ({"arena": {"size": "1Gi"}}, {"dtype": "bfloat16"}, {"objectives": {"itlMs": 9}})
    assert {template(**spec) for spec in same} == {template()}
    assert len({template(), *(template(**spec) for spec in other)}) == 4


def test_specs_fit_the_schema_that_the_cluster_checks() -> None:
    schema = service_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec_schema = schema["properties"]["spec"]
    for spec in SPECS.values():
        jsonschema.validate({"nodeSelector": {"a": "b"}, **spec}, spec_schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"nodeSelector": {}, **SPECS["plain"]}, spec_schema)


def test_the_example_for_operators_is_a_service() -> None:
    text = (CRD_CHART.parents[1] / "docs" / "operations.md").read_text()
    example = yaml.safe_load(text.split("```yaml")[1].split("```")[0])
    assert ServiceSpec.model_validate(example["spec"]).model.claim is not None
    crd = service_crd()["spec"]
    assert example["kind"] == crd["names"]["kind"]
    assert example["apiVersion"] == f"{crd['group']}/{crd['versions'][0]['name']}"


def test_the_crds_in_the_chart_are_what_the_models_say(tmp_path: Path) -> None:
    assert crds_main(["--check", str(CRD_CHART / "templates")]) == 0
    assert crds_main(["--check", str(tmp_path)]) == 1


def test_the_chart_gives_the_operator_flags_that_it_takes() -> None:
    text = (CRD_CHART.parent / "dualpace" / "templates" / "deployment.yaml").read_text()
    flags = {
        line.strip().removeprefix("- --").split("=")[0]
        for line in text.splitlines()
        if line.strip().startswith("- --")
    }
    fields = {f.name.replace("_", "-") for f in dataclasses.fields(OperatorSettings)}
    assert flags
    assert flags <= fields


def test_images_of_a_service_win_over_the_operators() -> None:
    spec = {**SPECS["plain"], "images": {"gateway": "mine:1"}}
    chosen = images_of(ServiceSpec.model_validate({"nodeSelector": {"a": "b"}, **spec}), IMAGES)
    assert chosen == ServiceImages(
        gateway="mine:1", gpu_engine="u:1", cpu_engine="c:1", profiler="p:1"
    )
