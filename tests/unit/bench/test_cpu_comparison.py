"""What bench/cpu makes of its measurements: targets, and sittings that add up."""

from pathlib import Path

import pytest
from cpu.cells import Cell, Timing
from cpu.engines import ENGINES, OURS, Settings, environment_of, refusal, run_engine
from cpu.limits import Limits
from cpu.store import Store
from cpu.targets import reached

HEADER = {"model": "demo", "isa": "avx2", "threads": 2}
LIMITS = Limits(30.0, 200.0, None)


def test_each_target_is_held_against_the_fastest_peer_of_its_class() -> None:
    large, small = Cell(32, 128), Cell(1, 128)
    speeds = {
        (OURS, "float32", large): 390.0,
        ("openvino-genai", "float32", large): 300.0,
        ("transformers", "float32", large): 100.0,
        (OURS, "float32", small): 50.0,
        ("llama.cpp", "float32", small): 49.0,
        (OURS, "bfloat16", large): 500.0,
        ("llama.cpp", "bfloat16", large): 200.0,
        ("llama.cpp", "float16", large): 250.0,
        ("openvino-genai", "float16", large): 400.0,
        (OURS, "int8", large): 330.0,
        ("openvino-genai", "int8", large): 300.0,
        (OURS, "int8", small): 1.0,
        ("openvino-genai", "int8", small): 300.0,
    }
    found = {(t.name, t.batch): (t.peer, round(t.ratio, 2), t.met) for t in reached(speeds)}
    assert found == {
        ("float32, best peer", 32): ("openvino-genai float32", 1.3, True),
        ("float32, best peer", 1): ("llama.cpp float32", 1.02, False),
        ("16-bit, llama.cpp", 32): ("llama.cpp float16", 2.0, True),
        ("16-bit, OpenVINO", 32): ("openvino-genai float16", 1.25, True),
        ("int8, OpenVINO", 32): ("openvino-genai int8", 1.1, True),
    }


def test_nothing_is_claimed_without_both_figures() -> None:
    cell = Cell(32, 128)
    assert reached({(OURS, "float32", cell): 1.0}) == []
    assert reached({("vllm", "float32", cell): 1.0, ("vllm", "int8", cell): 1.0}) == []


def test_a_later_sitting_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    path = tmp_path / "measured.jsonl"
    first = Store.open(path, HEADER)
    first.add_limits(LIMITS)
    first.add(Timing(OURS, "float32", 8, 128, (100.0, 110.0), {"head": 1.0}))
    first.add_missing("vllm", "int8", "has no such format")
    second = Store.open(path, HEADER)
    second.add(Timing(OURS, "float32", 8, 128, (120.0,)))
    whole = Store.open(path, HEADER)
    key = (OURS, "float32", Cell(8, 128))
    assert [t.tokens_per_s for t in whole.timings[key]] == [(100.0, 110.0), (120.0,)]
    assert whole.timings[key][0].stage_ms == {"head": 1.0}
    assert whole.limits == [LIMITS]
    assert whole.missing == {("vllm", "int8"): "has no such format"}


def test_figures_of_other_circumstances_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "measured.jsonl"
    Store.open(path, HEADER)
    with pytest.raises(ValueError, match="avx512"):
        Store.open(path, HEADER | {"isa": "avx512"})


def test_a_capped_peer_runs_in_its_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(tmp_path, "demo", tokens=4, threads=1, limit_s=1.0)
    openvino = ENGINES["openvino-genai"]
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino/ready").touch()
    monkeypatch.delenv("DUALPACE_MAX_ISA", raising=False)
    assert refusal(openvino, "int8", settings) == "has no model; see setup_peers.sh"
    assert "LD_PRELOAD" not in environment_of(openvino, settings)
    monkeypatch.setenv("DUALPACE_MAX_ISA", "avx2")
    assert refusal(openvino, "int8", settings) == "is not set up"
    library = environment_of(openvino, settings)["LD_PRELOAD"]
    assert library == str(tmp_path / "openvino-avx2/hide_avx512.so")


def test_a_peer_that_is_not_there_says_so_and_why(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "demo", tokens=4, threads=1, limit_s=1.0)
    vllm = ENGINES["vllm"]
    cells = [Cell(1, 16)]
    assert run_engine(vllm, "int8", cells, settings) == ([], "has no such format")
    assert run_engine(vllm, "float32", cells, settings) == ([], "is not set up")
    (tmp_path / "vllm.missing").write_text("no wheel for this processor\n")
    reason = "could not be installed: no wheel for this processor"
    assert run_engine(vllm, "float32", cells, settings) == ([], reason)
