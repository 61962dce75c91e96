"""The charts over a matrix of values: lint, schemas of Kubernetes, and the API's versions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualpace.operator.model.service import ServiceSpec
from tests.cluster.tools import CHART, CRD_CHART, find, helm
from tests.helm.readme import text_of

SERVICE: dict[str, Any] = {
    "name": "chat",
    "spec": {"model": {"claim": {"name": "models"}}, "nodeSelector": {"pool": "gpu"}},
}
EVERYTHING: dict[str, Any] = {
    "global": {"imageRegistry": "registry.example/team"},
    "images": {
        "pullSecrets": ["pull"],
        "profiler": {"repository": "dualpace/profiler", "digest": "sha256:" + "0" * 64},
    },
    "operator": {
        "namespaces": ["llm", "chat"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "nodeSelector": {"role": "system"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "podAnnotations": {"a": "b"},
        "serviceAccount": {"annotations": {"c": "d"}},
    },
    "services": [SERVICE, {**SERVICE, "name": "other", "namespace": "llm"}],
    "podDisruptionBudget": {"enabled": True},
    "networkPolicy": {
        "enabled": True,
        "from": [{"podSelector": {}}],
        "extraEgress": [{"ports": [{"port": 6379}]}],
    },
    "redisDemo": {"enabled": True},
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True},
    },
    "inferencePool": {"enabled": True, "service": "chat", "endpointPicker": {"name": "epp"}},
    "test": {"service": "chat"},
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "{{ .Release.Name }}-extra"},
        }
    ],
}
MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "no account of its own": {"operator": {"serviceAccount": {"create": False, "name": "x"}}},
    "offline": {"networkPolicy": {"enabled": True, "allowDownloads": False}},
    "traced": {
        "tracing": {"endpoint": "http://collector.observability:4317", "protocol": "grpc"},
        "services": [SERVICE],
    },
    "renamed": {"nameOverride": "dp", "images": {"gateway": {"tag": "2"}}},
}
VERSIONS = ("1.28", "1.30", "1.34", "1.37")
FOREIGN = {"ServiceMonitor", "PrometheusRule", "InferencePool", "DualPaceService"}
"""Kinds that Kubernetes has no schema for."""


@pytest.fixture(scope="session", autouse=True)
def _needs_helm() -> None:
    if find("helm") is None:
        pytest.skip("no helm (.ci/kubernetes-tools fetches it)")


Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def render(tmp_path: Path) -> Render:
    def run(values: dict[str, Any], *flags: str) -> list[dict[str, Any]]:
        file = tmp_path / "values.json"
        file.write_text(json.dumps(values))
        result = helm("template", "rel", str(CHART), "-n", "sys", f"--values={file}", *flags)
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.safe_load_all(result.stdout) if document]

    return run


def by_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


@pytest.mark.parametrize("name", MATRIX)
def test_manifests_fit_the_schemas_of_kubernetes(render: Render, name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for version in VERSIONS:
        documents = render(MATRIX[name], f"--kube-version={version}.0")
        assert documents
        for document in documents:
            if document["kind"] not in FOREIGN:
                validate.validate(document, version, strict=True)


def test_the_crds_fit_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    result = helm("template", "crds", str(CRD_CHART))
    crds = list(yaml.safe_load_all(result.stdout))
    assert [crd["metadata"]["name"].split(".")[0] for crd in crds] == [
        "dualpaceservices",
        "nodeprofiles",
    ]
    for crd in crds:
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        for version in VERSIONS:
            validate.validate(crd, version, strict=True)


def test_both_charts_pass_strict_lint(tmp_path: Path) -> None:
    for number, values in enumerate(MATRIX.values()):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(values))
        result = helm("lint", "--strict", str(CHART), f"--values={file}")
        assert result.returncode == 0, result.stdout + result.stderr
    assert helm("lint", "--strict", str(CRD_CHART)).returncode == 0


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"operater": {}}, "operater"),
        ({"images": {"gateway": {"tags": "1"}}}, "tags"),
        ({"images": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"services": [{"name": "a"}]}, "spec"),
        ({"services": [{**SERVICE, "name": "a" * 41}]}, "40"),
        ({"networkPolicy": {"gatewayPort": 70000}}, "gatewayPort"),
        ({"inferencePool": {"enabled": True}}, "inferencePool.service"),
    ],
)
def test_typos_and_nonsense_are_refused(
    tmp_path: Path, values: dict[str, Any], complaint: str
) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    result = helm("template", "rel", str(CHART), f"--values={file}")
    assert result.returncode == 1
    assert complaint in result.stderr


def test_the_schema_knows_every_value() -> None:
    def paths(values: Any, schema: dict[str, Any], at: str) -> list[str]:
        if "properties" not in schema:
            return []
        missing = [f"{at}.{key}" for key in set(values) ^ set(schema["properties"])]
        for key in set(values) & set(schema["properties"]):
            missing += paths(values[key], schema["properties"][key], f"{at}.{key}")
        return missing

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert paths(values, schema, "") == []


def test_services_that_name_no_collector_get_that_of_the_chart(render: Render) -> None:
    tracing = {"endpoint": "http://collector.observability:4317", "protocol": "grpc"}
    own = {"endpoint": "http://other:4318"}
    services = [
        SERVICE,
        {"name": "other", "spec": {**SERVICE["spec"], "tracing": own}},
        {"name": "third", "spec": {**SERVICE["spec"], "tracing": {"protocol": "http/protobuf"}}},
    ]
    rendered = by_kind(render({"tracing": tracing, "services": services}), "DualPaceService")
    assert [s["spec"]["tracing"] for s in rendered] == [tracing, own, tracing]
    for service in rendered:
        ServiceSpec.model_validate(service["spec"])
    [silent] = by_kind(render({"services": [SERVICE]}), "DualPaceService")
    assert "tracing" not in silent["spec"]


def test_api_versions_follow_the_cluster(render: Render) -> None:
    old = by_kind(render(EVERYTHING, "--kube-version=1.20.2"), "PodDisruptionBudget")
    new = by_kind(render(EVERYTHING, "--kube-version=1.30.0"), "PodDisruptionBudget")
    assert [old[0]["apiVersion"], new[0]["apiVersion"]] == ["policy/v1beta1", "policy/v1"]


def test_namespaces_narrow_the_operators_rights(render: Render) -> None:
    everywhere, narrow = render({}), render(EVERYTHING)
    resources = {
        name: {r for rule in role["rules"] for r in rule["resources"]}
        for name, role in (
            ("everywhere", by_kind(everywhere, "ClusterRole")[0]),
            ("narrow", by_kind(narrow, "ClusterRole")[0]),
        )
    }
    assert resources["narrow"] == {"nodes", "nodeprofiles", "nodeprofiles/status"}
    assert {"pods", "configmaps"} <= resources["everywhere"]
    assert {r["metadata"]["namespace"] for r in by_kind(narrow, "Role")} == {"llm", "chat"}
    every = [v for d in everywhere + narrow for r in d.get("rules", ()) for v in r["verbs"]]
    assert "*" not in every
    secrets = [d for d in everywhere for r in d.get("rules", ()) if "secrets" in r["resources"]]
    assert secrets == []


def test_pods_of_the_chart_have_no_rights_to_lose(render: Render) -> None:
    documents = render(EVERYTHING)
    specs = [d["spec"]["template"]["spec"] for d in by_kind(documents, "Deployment")]
    specs += [pod["spec"] for pod in by_kind(documents, "Pod")]
    assert len(specs) == 3
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_the_readme_tells_every_value() -> None:
    assert (CHART / "README.md").read_text() == text_of(CHART), "run `make crds`"
