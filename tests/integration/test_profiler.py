"""`dualpace profile` as a person runs it: interrupted, gone on with, drawn."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dualpace.profiles import ProfileWatcher, for_model, read_profile
from dualpace.scheduling.profile import Source
from dualpace.testing.gold import tiny_model
from dualpace.testing.served_node import wait_for

COMMAND = (sys.executable, "-m", "dualpace.cli", "profile")


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=300
    )


def test_a_run_that_was_interrupted_goes_on_and_its_profile_is_drawn(tmp_path: Path) -> None:
    out, partial = tmp_path / "profile.json", tmp_path / "profile.json.partial"
    flags = (f"--model={tiny_model('llama3_rope')}", "--quick", "--threads=1", f"--out={out}")
    first = subprocess.Popen([*COMMAND, *flags], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(lines_of(partial)) > 6 or first.poll() is not None, 120.0, lambda: "")
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 1 and "interrupted (SIGINT)" in said, said
    assert not out.exists()
    kept = lines_of(partial)[1:-1]  # the last may be torn

    second = run(*flags, f"--report={tmp_path / 'report'}")
    assert second.returncode == 0, second.stderr
    assert "going on where an earlier run stopped" in second.stderr
    assert not partial.exists()
    profile = read_profile(out)
    cells = profile.evidence["cells"]
    for line in map(json.loads, kept):  # nothing was measured twice
        assert cells[line["key"]][2] == line["samples"]
    assert {profile.sources.gpu, profile.sources.assist} == {Source.STAND_IN}
    assert 0.0 < profile.assist_sync_ms < 1000.0
    assert profile.evidence["hardware"]["threads"] == 1
    assert (tmp_path / "report").stat().st_size <= 4096

    watcher = ProfileWatcher(out, check=for_model(profile.model.fingerprint))
    assert watcher.load() == profile
    shown = run("show", str(out))
    assert shown.returncode == 0, shown.stderr
    assert "device measured on cpu" in shown.stdout
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--modle=x",), "unknown argument --modle; did you mean --model?"),
        (("--device=emulated:abacus",), "'abacus' is not one of rtx-4090"),
        (("--out=/nowhere/p.json",), "/nowhere is not a directory"),
        (("show", "/nowhere.json"), "/nowhere.json: No such file"),
        (("show",), "usage: dualpace profile show FILE"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(
    arguments: tuple[str, ...], message: str
) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_no_variable_of_the_services_stops_the_profiler() -> None:
    environ = os.environ | {"DUALPACE_GATEWAY_MAX_CHOICES": "3"}
    done = subprocess.run(
        [*COMMAND, "--help"], capture_output=True, text=True, check=False, env=environ
    )
    assert done.returncode == 0 and "--itl-target-ms" in done.stdout
