"""Alerts and dashboard: they parse, they name metrics that are exported, and alerts fire."""

import ast
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dualpace.core.clock import SystemClock
from dualpace.core.request import Engine
from dualpace.gateway.telemetry import metric_names
from dualpace.gateway.telemetry.metrics import Metrics
from dualpace.gateway.telemetry.observer import RequestObserver
from dualpace.testing.fake_backend import FakeBackend, always
from tests.cluster.tools import CHART, REPOSITORY

RULES = CHART / "rules" / "dualpace.yaml"
DASHBOARD = json.loads((CHART / "dashboards" / "dualpace.json").read_text())


def expressions() -> list[tuple[str, str]]:
    found = [
        (f"panel {panel['title']}", target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        found += [(f"alert {rule['alert']}", rule["expr"]) for rule in group["rules"]]
    return found


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Every series name of the gateway's page, and every number that the engines report."""
    metrics = Metrics(FakeBackend(always(1)), "m")
    observer = RequestObserver(metrics, SystemClock(), 0.0, [1])
    for _ in range(2):
        observer.token(0, Engine.GPU)
    observer.finished(0, "stop")
    metrics.http("h", "GET", 200, 0.1)
    metrics.disconnected("waiting")
    names = {
        sample.name
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
    }
    names |= {metric_names.ENGINE_CONNECTED, metric_names.ENGINE_HEARTBEAT_AGE}
    for engine in ("gpu_engine", "cpu_engine"):
        for file in (REPOSITORY / "services" / engine / "dualpace" / engine).glob("*.py"):
            names |= {metric_names.ENGINE_PREFIX + key for key in gauges_in(file)}
    return names


def gauges_in(file: Path) -> set[str]:
    """Keys of the dictionaries that functions called `gauges` in a file return."""
    functions = [
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "gauges"
    ]
    keys = (
        key
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Dict)
        for key in node.keys
    )
    return {k.value for k in keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_expressions_parse_and_name_what_is_exported(
    where: str, expression: str, exported: set[str]
) -> None:
    parser = pytest.importorskip("promql_parser")
    plain = expression.replace("$namespace", ".*").replace("$pod", ".*")
    parser.parse(plain)
    used = set(re.findall(r"((?:vllm:|dualpace_|http_)[a-z0-9_:]+)", plain))
    assert used, where
    assert used <= exported, where


def test_variables_of_the_dashboard_name_what_is_exported(exported: set[str]) -> None:
    queries = [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    used = {name for query in queries for name in re.findall(r"dualpace_[a-z_]+", query)}
    assert used
    assert used <= exported


@pytest.fixture
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool (Debian: prometheus)")
    return program


CASES: dict[str, dict[str, Any]] = {
    "DualPaceEngineLost": {
        "series": {'dualpace_engine_connected{pod="p",engine="cpu"}': "1 1 0x10"},
        "at": "5m",
        "labels": {"severity": "critical", "pod": "p", "engine": "cpu"},
    },
    "DualPaceEngineSilent": {
        "series": {'dualpace_engine_heartbeat_age_seconds{pod="p",engine="gpu"}': "0 60x10"},
        "at": "4m",
        "labels": {"severity": "critical", "pod": "p", "engine": "gpu"},
    },
    "DualPaceCpuEngineStalled": {
        "series": {
            'dualpace_engine_running{pod="p",engine="cpu"}': "3x20",
            'dualpace_engine_steps_total{pod="p",engine="cpu"}': "0+10x3 30x20",
        },
        "at": "9m",
        "labels": {"severity": "critical", "pod": "p", "engine": "cpu"},
    },
    "DualPaceQueueGrows": {
        "series": {'vllm:num_requests_waiting{pod="p"}': "0+10x40"},
        "at": "25m",
        "labels": {"severity": "warning", "pod": "p"},
    },
    "DualPaceErrors": {
        "series": {
            'vllm:request_success_total{pod="p",finished_reason="stop"}': "0+90x30",
            'vllm:request_success_total{pod="p",finished_reason="error"}': "0+10x30",
        },
        "at": "15m",
        "labels": {"severity": "warning", "pod": "p"},
    },
    "DualPaceArenaFull": {
        "series": {
            'dualpace_engine_free_blocks{pod="p",engine="cpu"}': "1x40",
            'dualpace_engine_total_blocks{pod="p",engine="cpu"}': "100x40",
        },
        "at": "20m",
        "labels": {"severity": "warning", "pod": "p", "engine": "cpu"},
    },
}
QUIET = {
    'dualpace_engine_connected{pod="p",engine="cpu"}': "1x40",
    'dualpace_engine_heartbeat_age_seconds{pod="p",engine="cpu"}': "0.2x40",
    'dualpace_engine_running{pod="p",engine="cpu"}': "3x40",
    'dualpace_engine_steps_total{pod="p",engine="cpu"}': "0+10x40",
    'vllm:num_requests_waiting{pod="p"}': "5x40",
    'vllm:request_success_total{pod="p",finished_reason="stop"}': "0+90x40",
    'dualpace_engine_free_blocks{pod="p",engine="cpu"}': "50x40",
    'dualpace_engine_total_blocks{pod="p",engine="cpu"}': "100x40",
}


def test_alerts_fire_when_they_should_and_never_else(promtool: str, tmp_path: Path) -> None:
    alerts = {
        rule["alert"]: rule
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    }
    assert set(CASES) == set(alerts)
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in case["series"].items()],
            "alert_rule_test": [
                {"eval_time": case["at"], "alertname": name, "exp_alerts": [_expected(case)]}
            ],
        }
        for name, case in CASES.items()
    ]
    tests.append(
        {
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in QUIET.items()],
            "alert_rule_test": [
                {"eval_time": "30m", "alertname": name, "exp_alerts": []} for name in CASES
            ],
        }
    )
    # Annotations are texts; what fires is what counts here.
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests})
    )
    for command in (("test", "rules", "tests.yaml"), ("check", "rules", str(RULES))):
        result = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr


def _expected(case: dict[str, Any]) -> dict[str, Any]:
    return {"exp_labels": case["labels"]}
