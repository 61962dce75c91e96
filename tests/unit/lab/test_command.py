"""The command line, as a process for what a process does, in process for the rest."""

import json
import os
import subprocess
import sys

import pytest

from dualpace.core.errors import SettingsError
from dualpace.lab.command import main


def test_a_run_prints_labelled_json_through_the_cli() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "dualpace.cli", "lab", "run", "--requests", "40", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["kind"] == "simulated"
    assert document["seed"] == 0
    assert document["commit"]
    assert document["metrics"]["finished"] == 40


def test_runs_do_not_depend_on_how_python_hashes() -> None:
    flags = ["--requests", "60", "--rate", "4", "--json"]
    runs = [
        subprocess.run(
            [sys.executable, "-m", "dualpace.lab", "run", *flags],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "4242")
    ]
    assert runs[0] == runs[1]


def test_errors_name_what_is_wrong_in_one_line() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "dualpace.lab", "run", "--system", "sglang"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    names = "dualpace, neo, neo-measured, vllm, vllm-defaults, vllm-256, vllm-defaults-256"
    assert result.stderr == f"dualpace lab: system: 'sglang' is not one of {names}\n"


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--rate", "-1"], "rate"),
        (["--rate", "much"], "rate"),
        (["--host", "abacus"], "host"),
        (["--gpu", "voodoo"], "gpu"),
        (["--model", "eliza"], "model"),
        (["--workload", "none.csv"], "workload"),
        (["--requests", "0"], "count"),
        (["--workload", "fixed:900:101", "--device-blocks", "62"], "workload: 2000 of 2000"),
    ],
)
def test_bad_flags_are_refused_before_anything_runs(flags: list[str], field: str) -> None:
    with pytest.raises(SettingsError, match=f"^{field}"):
        main(["run", *flags])


def test_a_summary_compares_and_holds_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--requests", "30", "--seeds", "0", "--hosts", "xeon-4510-120"]
    systems = ["--systems", "dualpace", "neo", "vllm", "--code-rates", "2", "inf"]
    assert main(["summary", "--json", *flags, *systems]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "simulated"
    assert [row["system"] for row in document["systems"]] == ["dualpace", "neo", "vllm"]
    assert [row["over"] for row in document["ratios"]] == ["neo", "vllm"]
    ours, neo = document["systems"][:2]
    expected = ours["tokens_per_s_saturated"] / neo["tokens_per_s_saturated"]
    assert document["ratios"][0]["tokens_per_s_saturated"] == pytest.approx(expected)
    assert len(document["cases"]) == 3
    assert [row["host"] for row in document["bounds"]] == ["alone", "xeon-4510-120"]
    goals = {row["goal"] for row in document["goals"]}
    assert {"rate_at_itl over neo", "tokens_per_s_saturated over vllm"} <= goals
    assert [row["rate"] for row in document["code_trace"]["rates"]] == [2.0, None]
    assert main(["summary", *flags, *systems]) == 0
    assert capsys.readouterr().out.startswith("simulated: ")
