"""What bench/cpu makes of its measurements: targets, and sittings that add up."""

from pathlib import Path

import pytest
from cpu.cells import Cell, Timing
from cpu.engines import ENGINES, OURS, Settings, environment_of, open_session, refusal
from cpu.limits import Limits, most_tokens_per_s
from cpu.session import SessionError
from cpu.store import Store
from cpu.summary import free_of_cap, limits_text, row_text, rows_of, target_record, target_text
from cpu.targets import Speeds, ratio_of, reached

from dualpace.checkpoint import Family, LayerConfig, ModelConfig, RopeConfig

HEADER = {"model": "demo", "isa": "avx2", "threads": 2}
LIMITS = Limits(30.0, 200.0, None, None)


def tiny_config() -> ModelConfig:
    """One layer of 8 hidden, two query heads and one KV head of 4."""
    return ModelConfig(
        family=Family.LLAMA,
        vocab_size=10,
        hidden_size=8,
        intermediate_size=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        layers=(LayerConfig(rope=RopeConfig(theta=1e4, rotary_dim=4)),),
        norm_eps=1e-5,
        context_length=128,
        tied_embeddings=True,
        attention_scale=0.5,
    )


def test_each_target_is_held_against_the_fastest_peer_of_its_class() -> None:
    large, small = Cell(32, 128), Cell(1, 128)
    speeds = {
        (OURS, "float32", large): (390.0,),
        ("openvino-genai", "float32", large): (300.0,),
        ("transformers", "float32", large): (100.0,),
        (OURS, "float32", small): (50.0,),
        ("llama.cpp", "float32", small): (49.0,),
        (OURS, "bfloat16", large): (500.0,),
        ("llama.cpp", "bfloat16", large): (200.0,),
        ("llama.cpp", "float16", large): (250.0,),
        ("openvino-genai", "float16", large): (400.0,),
        (OURS, "int8", large): (330.0,),
        ("openvino-genai", "int8", large): (300.0,),
        (OURS, "int8", small): (1.0,),
        ("openvino-genai", "int8", small): (300.0,),
    }
    targets = reached(speeds, lambda _format, _cell: 600.0)
    found = {(t.name, t.batch): (t.peer, round(t.ratio, 2), t.met) for t in targets}
    assert found == {
        ("float32, best peer", 32): ("openvino-genai float32", 1.3, True),
        ("float32, best peer", 1): ("llama.cpp float32", 1.02, False),
        ("16-bit, llama.cpp", 32): ("llama.cpp float16", 2.0, True),
        ("16-bit, OpenVINO", 32): ("openvino-genai float16", 1.25, True),
        ("int8, OpenVINO", 32): ("openvino-genai int8", 1.1, True),
    }


def test_rounds_are_held_against_each_other_one_by_one() -> None:
    """The machine was three times as fast in the second: that says nothing of either engine."""
    assert ratio_of((10.0, 33.0, 11.0), (10.0, 30.0, 10.0)) == pytest.approx(1.1)
    assert ratio_of((10.0, 12.0), (5.0, 30.0, 10.0)) == pytest.approx(1.1)
    cell = Cell(32, 128)
    (target,) = reached(
        {
            (OURS, "float32", cell): (10.0, 40.0, 11.0),
            ("vllm", "float32", cell): (9.0, 36.0, 10.0),
            ("ctranslate2", "float32", cell): (1.0, 1.0, 1.0),
        },
        lambda _format, _cell: 20.0,
    )
    assert target.peer == "vllm float32"
    assert target.ratio == pytest.approx(10 / 9)
    assert (target.ours, target.peer_speed, target.reach) == (11.0, 10.0, 2.0)


def test_nothing_is_claimed_without_both_figures() -> None:
    cell = Cell(32, 128)
    ours: Speeds = {(OURS, "float32", cell): (1.0,)}
    theirs: Speeds = {("vllm", "float32", cell): (1.0,), ("vllm", "int8", cell): (1.0,)}
    assert reached(ours, lambda _format, _cell: 1.0) == []
    assert reached(theirs, lambda _format, _cell: 1.0) == []


def test_a_target_says_what_the_limits_of_our_format_allow_against_that_peer() -> None:
    cell = Cell(32, 128)
    speeds = {(OURS, "bfloat16", cell): (100.0,), ("openvino-genai", "float16", cell): (200.0,)}
    most = {("bfloat16", cell): 500.0}
    (target,) = reached(speeds, lambda format_, at: most[format_, at])
    assert target.reach == pytest.approx(2.5)
    assert target_text(target).endswith("NOT met; this machine's limits allow 2.50")
    assert target_record(target)["reach"] == 2.5


def test_the_most_a_step_can_do_follows_from_its_bytes_and_operations() -> None:
    """A model of one layer, by hand: weights once a step, KV of each sequence, operations."""
    layer = 8 * (2 * 2 + 2 * 1) * 4 + 3 * 8 * 16
    weights = layer + 10 * 8

    def most(limits: Limits, batch: int, context: int, format_: str) -> float:
        return most_tokens_per_s(
            tiny_config(), limits, batch=batch, context=context, format_=format_
        )

    # Bytes alone bind: 1 GB/s, and arithmetic for nothing.
    reading = Limits(1.0, 1e9, None, None)
    kv = 2 * 100 * 1 * 4
    assert most(reading, 1, 100, "float32") == pytest.approx(1e9 / (4 * (weights + kv)))
    assert most(reading, 3, 100, "int8") == pytest.approx(3e9 / (weights + 3 * 2 * kv))
    # Operations alone bind.
    counting = Limits(1e9, 1.0, None, None)
    attention = 4 * 100 * 2 * 4
    assert most(counting, 2, 100, "float32") == pytest.approx(1e9 / (2 * weights + attention))
    # bfloat16 products run at the peak of their own arithmetic, if any; attention does not.
    both = Limits(1e9, 1.0, 4.0, None)
    assert most(both, 2, 100, "bfloat16") == pytest.approx(1e9 / (2 * weights / 4 + attention))
    assert most(both, 2, 100, "float16") == pytest.approx(1e9 / (2 * weights + attention))
    # Without it they run in int16; the head of a wider model is searched in that, at two bytes.
    whole = Limits(1e9, 1.0, None, 2.0)
    assert most(whole, 2, 100, "bfloat16") == pytest.approx(1e9 / (2 * weights / 2 + attention))
    wide = 2 * (layer + 10 * 8 / 2)
    assert most(whole, 2, 100, "float32") == pytest.approx(1e9 / (wide + attention))
    slow = Limits(1.0, 1e9, 1e9, 1e9)
    read = 4 * (layer + kv) + 2 * 10 * 8
    assert most(slow, 1, 100, "float32") == pytest.approx(1e9 / read)


def test_shares_and_reach_of_a_row_are_of_the_limits_measured_beside_it() -> None:
    """The better of those before and after it; those of other sittings count for nothing."""
    store = Store(None)
    cell = Cell(4, 100)
    for read, sitting in ((99.0, ()), (2.0, (OURS, "vllm")), (4.0, ()), (99.0, ())):
        store.add_limits(Limits(read, 1e9, None, None))
        for engine in sitting:
            store.add(Timing(engine, "float32", cell.batch, cell.context, (50.0,), avx512=False))
    assert [one.read_gb_per_s for one in store.limits_around(OURS, "float32", cell)] == [4.0]
    (row,) = rows_of(store, tiny_config())
    most = most_tokens_per_s(
        tiny_config(), Limits(4.0, 1e9, None, None), batch=4, context=100, format_="float32"
    )
    assert row["reach"] == round(most / 50, 2)
    assert row["avx512_seen"] == []
    assert f"reach {row['reach']}" in row_text(row)


def test_who_was_seen_with_avx512_is_named() -> None:
    store = Store(None)
    for engine, seen in (("vllm", True), ("vllm", False), ("ctranslate2", False), (OURS, None)):
        store.add(Timing(engine, "float32", 1, 128, (1.0,), avx512=seen))
    assert free_of_cap(store) == ["vllm float32"]


def test_limits_are_told_by_their_range_and_those_unknown_not_at_all() -> None:
    several = [
        Limits(read, rate, None, None)
        for read, rate in ((30.4, 200.0), (60.4, 100.0), (40.0, 150.0))
    ]
    text = "limits, measured 3 times: read_gb_per_s 30 to 60, fp32_gflop_per_s 100 to 200"
    assert limits_text(several) == text


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
    with pytest.raises(SessionError, match="has no such format"):
        open_session(vllm, "int8", cells, settings)
    with pytest.raises(SessionError, match="is not set up"):
        open_session(vllm, "float32", cells, settings)
    (tmp_path / "vllm.missing").write_text("no wheel for this processor\n")
    with pytest.raises(SessionError, match="could not be installed: no wheel for this processor"):
        open_session(vllm, "float32", cells, settings)
